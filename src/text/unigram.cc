#include "text/unigram.h"

#include <algorithm>

#include "text/unicode.h"

namespace tandem::text {

namespace {
constexpr uint32_t kNone = ~uint32_t{0};
constexpr size_t kMaxNodes = 8 << 20;
// What SentencePiece takes off the lowest score for a character outside the vocabulary.
constexpr double kUnknownPenalty = 10;
}  // namespace

uint32_t Unigram::step(uint32_t node, uint8_t byte) const {
  if (edges_.empty()) return kNone;
  const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
  const size_t mask = edges_.size() - 1;
  for (size_t i = mix64(key) & mask;; i = (i + 1) & mask) {
    if (edges_[i].key == key) return edges_[i].node;
    if (edges_[i].key == ~uint64_t{0}) return kNone;
  }
}

void Unigram::grow() {
  std::vector<Edge> old(std::max<size_t>(1024, edges_.size() * 2));
  old.swap(edges_);
  const size_t mask = edges_.size() - 1;
  for (const Edge& edge : old) {
    if (edge.key == ~uint64_t{0}) continue;
    size_t i = mix64(edge.key) & mask;
    while (edges_[i].key != ~uint64_t{0}) i = (i + 1) & mask;
    edges_[i] = edge;
  }
}

Status Unigram::add(std::string_view spelling, int32_t token, double score, bool counts,
                    bool guarded) {
  uint32_t at = 0;
  for (const char c : spelling) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = step(at, byte);
    if (next == kNone) {
      if (nodes_.size() >= kMaxNodes) {
        return make_error(400, "invalid_tokenizer", "the vocabulary's spellings are too long");
      }
      if (nodes_.size() * 2 >= edges_.size()) grow();
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      const uint64_t key = static_cast<uint64_t>(at) << 8 | byte;
      const size_t mask = edges_.size() - 1;
      size_t i = mix64(key) & mask;
      while (edges_[i].key != ~uint64_t{0}) i = (i + 1) & mask;
      edges_[i] = {key, next};
    }
    at = next;
  }
  if (at != 0) nodes_[at] = {token, guarded, score};
  if (counts) count_score(score);
  return {};
}

void Unigram::count_score(double score) {
  min_score_ = any_ ? std::min(min_score_, score) : score;
  any_ = true;
}

template <typename Real>
void Unigram::fill(std::string_view text, UnigramScratch& scratch) const {
  auto& best = scratch.nodes;
  best.assign(text.size() + 1, {0, kNone, -1});
  const auto unknown_score =
      static_cast<Real>(static_cast<Real>(min_score_) - static_cast<Real>(kUnknownPenalty));
  const auto offset = scratch.guarded.empty() ? 0 : text.data() - scratch.guarded.data();
  for (uint32_t start = 0; start < text.size();) {
    const Real here = static_cast<Real>(best[start].score);
    const uint32_t width = decode_utf8(text, start).size;
    const bool permitted =
        scratch.guarded.empty() ||
        std::ranges::binary_search(scratch.permitted, static_cast<uint32_t>(offset + start));
    bool single = false;  // some token covers exactly this character
    uint32_t at = 0;
    for (uint32_t end = start; end < text.size();) {
      at = step(at, static_cast<uint8_t>(text[end]));
      if (at == kNone) break;
      ++end;
      const Entry& entry = nodes_[at];
      if (entry.token < 0 || (entry.guarded && !permitted)) continue;
      const Real candidate = static_cast<Real>(static_cast<Real>(entry.score) + here);
      auto& target = best[end];
      if (target.start == kNone || candidate > static_cast<Real>(target.score)) {
        target = {static_cast<double>(candidate), start, entry.token};
      }
      single = single || end - start == width;
    }
    if (!single) {
      const Real candidate = static_cast<Real>(unknown_score + here);
      auto& target = best[start + width];
      if (target.start == kNone || candidate > static_cast<Real>(target.score)) {
        target = {static_cast<double>(candidate), start, -1};
      }
    }
    start += width;
  }
}

void Unigram::emit(std::string_view character, std::vector<int32_t>& out) const {
  const bool all = std::all_of(character.begin(), character.end(), [this](char c) {
    return byte_tokens[static_cast<uint8_t>(c)] >= 0;
  });
  if (all) {
    for (const char c : character) out.push_back(byte_tokens[static_cast<uint8_t>(c)]);
  } else if (unknown >= 0) {
    out.push_back(unknown);
  }
}

void Unigram::encode(std::string_view text, UnigramScratch& scratch,
                     std::vector<int32_t>& out) const {
  if (text.empty()) return;
  if (single_precision) {
    fill<float>(text, scratch);
  } else {
    fill<double>(text, scratch);
  }
  auto& cuts = scratch.cuts;
  cuts.clear();
  for (auto end = static_cast<uint32_t>(text.size()); end > 0; end = scratch.nodes[end].start) {
    cuts.push_back(end);
  }
  uint32_t start = 0;
  for (size_t i = cuts.size(); i-- > 0;) {
    const uint32_t end = cuts[i];
    const int32_t token = scratch.nodes[end].token;
    if (token >= 0) {
      out.push_back(token);
    } else {
      emit(text.substr(start, end - start), out);
    }
    start = end;
  }
  // One huge text must not pin its memory for the life of the encoder.
  constexpr size_t kKeep = 1 << 16;
  if (scratch.nodes.capacity() > kKeep) std::vector<UnigramScratch::Node>().swap(scratch.nodes);
  if (cuts.capacity() > kKeep) std::vector<uint32_t>().swap(cuts);
}

}  // namespace tandem::text
