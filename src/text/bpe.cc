#include "text/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "text/unicode.h"

namespace tandem::text {

namespace {
constexpr size_t kShortPiece = 48;
constexpr uint32_t kNone = ~uint32_t{0};
}  // namespace

BpeScratch::BpeScratch() : cache_(kCacheEntries) {}

void Bpe::encode_cached(uint64_t hash, std::string_view piece, BpeScratch& scratch,
                        std::vector<int32_t>& out) const {
  auto& entry = scratch.cache_[hash & (BpeScratch::kCacheEntries - 1)];
  if (entry.hash == hash && entry.word_size == piece.size() &&
      std::memcmp(entry.word.data(), piece.data(), piece.size()) == 0) {
    out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.token_count);
    return;
  }
  const size_t before = out.size();
  merge(piece, scratch, out);
  const size_t count = out.size() - before;
  if (count > BpeScratch::kCacheTokens) return;
  entry.hash = hash;
  entry.word_size = static_cast<uint8_t>(piece.size());
  entry.token_count = static_cast<uint8_t>(count);
  std::memcpy(entry.word.data(), piece.data(), piece.size());
  std::copy_n(out.begin() + static_cast<ptrdiff_t>(before), count, entry.tokens.begin());
}

template <typename Emit>
void Bpe::each_fallback(std::string_view character, const Emit& emit) const {
  const bool all = std::all_of(character.begin(), character.end(), [this](char c) {
    return byte_tokens[static_cast<uint8_t>(c)] >= 0;
  });
  if (all) {
    for (const char c : character) emit(byte_tokens[static_cast<uint8_t>(c)]);
  } else if (unknown >= 0) {
    emit(unknown);
  }
}

template <typename Emit>
void Bpe::each_symbol(std::string_view piece, const Emit& emit) const {
  if (!by_character) {
    for (const char c : piece) {
      const int32_t token = byte_tokens[static_cast<uint8_t>(c)];
      if (token >= 0) {
        emit(token);
      } else if (unknown >= 0) {
        emit(unknown);
      }
    }
    return;
  }
  for (size_t i = 0; i < piece.size();) {
    const Decoded decoded = decode_utf8(piece, i);
    const int32_t token = characters.find(decoded.code_point);
    if (token >= 0) {
      emit(token);
    } else {
      each_fallback(piece.substr(i, decoded.size), emit);
    }
    i += decoded.size;
  }
}

void Bpe::finish(int32_t token, std::vector<int32_t>& out) const {
  if (token < first_virtual) {
    out.push_back(token);
  } else {
    each_fallback(virtuals[static_cast<size_t>(token - first_virtual)],
                  [&](int32_t part) { out.push_back(part); });
  }
}

void Bpe::merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() <= kShortPiece) {
    merge_short(piece, out);
  } else {
    merge_long(piece, scratch, out);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& out) const {
  int32_t tokens[kShortPiece];
  Merge pairs[kShortPiece];  // pairs[i] joins tokens[i] and tokens[i + 1]; rank kNone: cannot
  size_t count = 0;
  each_symbol(piece, [&](int32_t token) { tokens[count++] = token; });
  const auto look_up = [&](size_t i) {
    const Merge* found = merges.find(tokens[i], tokens[i + 1]);
    return found == nullptr ? Merge{kNone, -1} : *found;
  };
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNone) break;
    tokens[best] = pairs[best].token;
    std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best + 1 < count) pairs[best] = look_up(best);
    if (best > 0) pairs[best - 1] = look_up(best - 1);
  }
  for (size_t i = 0; i < count; ++i) finish(tokens[i], out);
}

void Bpe::merge_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  auto& nodes = scratch.nodes_;
  auto& heap = scratch.heap_;
  nodes.clear();
  heap.clear();
  each_symbol(piece, [&](int32_t token) {
    const auto position = static_cast<uint32_t>(nodes.size());
    nodes.push_back({token, position == 0 ? kNone : position - 1, position + 1});
  });
  if (nodes.empty()) return;
  nodes.back().next = kNone;

  const auto offer = [&](uint32_t position) {
    const auto& node = nodes[position];
    if (node.next == kNone) return false;
    const Merge* found = merges.find(node.token, nodes[node.next].token);
    if (found == nullptr) return false;
    heap.push_back(static_cast<uint64_t>(found->rank) << 32 | position);
    return true;
  };
  for (uint32_t i = 0; i < nodes.size(); ++i) offer(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto position = static_cast<uint32_t>(top);
    auto& node = nodes[position];
    // An entry is stale when its left part was swallowed or either part has grown since.
    if (node.token < 0 || node.next == kNone) continue;
    const Merge* found = merges.find(node.token, nodes[node.next].token);
    if (found == nullptr || found->rank != top >> 32) continue;
    auto& swallowed = nodes[node.next];
    node.token = found->token;
    node.next = swallowed.next;
    swallowed.token = -1;
    if (node.next != kNone) nodes[node.next].previous = position;
    if (offer(position)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (node.previous != kNone && offer(node.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) finish(nodes[i].token, out);
  // One huge piece must not pin its memory for the life of the encoder.
  constexpr size_t kKeep = 1 << 16;
  if (nodes.capacity() > kKeep) std::vector<BpeScratch::Node>().swap(nodes);
  if (heap.capacity() > kKeep) std::vector<uint64_t>().swap(heap);
}

}  // namespace tandem::text
