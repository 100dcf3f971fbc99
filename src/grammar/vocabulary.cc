#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "base/json_value.h"

namespace tandem::grammar {
namespace {

constexpr uint32_t kMostCharacters = 64;

TokenTrie build_trie(const std::vector<std::string>& bytes, std::vector<int32_t> tokens) {
  std::erase_if(tokens, [&](int32_t token) { return bytes[static_cast<size_t>(token)].empty(); });
  std::sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
    const int order = bytes[static_cast<size_t>(a)].compare(bytes[static_cast<size_t>(b)]);
    return order != 0 ? order < 0 : a < b;
  });
  TokenTrie trie;
  std::vector<uint32_t> path;  // nodes from the first byte on
  std::string_view previous;
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      trie.end[path.back()] = static_cast<uint32_t>(trie.byte.size());
      path.pop_back();
    }
  };
  for (const int32_t token : tokens) {
    const std::string_view text = bytes[static_cast<size_t>(token)];
    if (text == previous) {
      int32_t& entry = trie.token[path.back()];
      if (entry >= 0) {
        trie.several.push_back({entry});
        entry = TokenTrie::kSeveral - static_cast<int32_t>(trie.several.size() - 1);
      }
      trie.several[static_cast<size_t>(TokenTrie::kSeveral - entry)].push_back(token);
      continue;
    }
    size_t common = 0;
    while (common < previous.size() && common < text.size() && previous[common] == text[common])
      ++common;
    close(common);
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.byte.size()));
      trie.byte.push_back(static_cast<uint8_t>(text[i]));
      trie.depth.push_back(static_cast<uint16_t>(i + 1));
      trie.end.push_back(0);
      trie.token.push_back(TokenTrie::kNone);
    }
    trie.token[path.back()] = token;
    trie.deepest = std::max(trie.deepest, static_cast<uint16_t>(text.size()));
    previous = text;
  }
  close(0);
  return trie;
}

// The characters of a text that a JSON string holds as it is; nothing when there are others or
// parts of some.
std::optional<uint32_t> plain_characters(std::string_view text) {
  if (text.empty() || !is_valid_utf8(text)) return std::nullopt;
  uint32_t count = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == '"' || byte == '\\') return std::nullopt;
    count += (byte & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

}  // namespace

size_t LexicalMask::bytes() const {
  size_t total = sizeof(LexicalMask) + few.size() * sizeof(int32_t);
  if (many) total += many->words().size_bytes();
  for (const Border& border : borders)
    total += sizeof(Border) + border.members.size() * 2 + border.nodes.size() * sizeof(uint32_t);
  return total;
}

Vocabulary::Vocabulary(VocabularyTable table, size_t cache_bytes)
    : table_(std::move(table)), ends_(table_.bytes.size()), cache_limit_(cache_bytes) {
  constexpr size_t kLongest = 4096;
  for (auto& text : table_.bytes) {
    if (text.size() > kLongest) text.clear();
  }
  for (const int32_t token : table_.end_of_generation) {
    ends_.add(token);
    table_.bytes[static_cast<size_t>(token)].clear();
  }
  for (const auto& special : table_.special) special_.emplace(special.name, special.token);
  std::vector<int32_t> every(size());
  std::iota(every.begin(), every.end(), 0);
  plain_.assign(kMostCharacters + 1, TokenMask(size()));
  std::vector<int32_t> rest;
  for (const int32_t token : every) {
    const auto characters = plain_characters(bytes(token));
    if (!characters) {
      rest.push_back(token);
      continue;
    }
    for (uint32_t most = std::min(*characters, kMostCharacters); most <= kMostCharacters; ++most)
      plain_[most].add(token);
  }
  trie_ = build_trie(table_.bytes, std::move(every));
  rest_ = build_trie(table_.bytes, std::move(rest));
}

const TokenMask& Vocabulary::plain(uint32_t characters) const {
  // A token of more characters than are told apart counts as having the most.
  return plain_[std::min(characters, kMostCharacters)];
}

std::optional<int32_t> Vocabulary::find_special(std::string_view name) const {
  const auto at = special_.find(std::string(name));
  if (at == special_.end()) return std::nullopt;
  return at->second;
}

bool Vocabulary::extends(std::string_view text, const TokenMask& among) const {
  uint32_t at = 0;
  auto end = static_cast<uint32_t>(trie_.size());
  for (const char c : text) {
    while (at < end && trie_.byte[at] != static_cast<uint8_t>(c)) at = trie_.end[at];
    if (at >= end) return false;
    end = trie_.end[at];
    ++at;
  }
  for (; at < end; ++at) {
    const int32_t token = trie_.token[at];
    if (token >= 0 && among.has(token)) return true;
    if (token <= TokenTrie::kSeveral &&
        std::ranges::any_of(trie_.several[static_cast<size_t>(TokenTrie::kSeveral - token)],
                            [&](int32_t one) { return among.has(one); }))
      return true;
  }
  return false;
}

std::shared_ptr<const LexicalMask> Vocabulary::find_mask(const Hash128& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = index_.find(key);
  if (at == index_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, at->second);
  return at->second->mask;
}

void Vocabulary::keep_mask(const Hash128& key, std::shared_ptr<const LexicalMask> mask) const {
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return;
  kept_bytes_ += mask->bytes();
  kept_.push_front({key, std::move(mask)});
  index_.emplace(key, kept_.begin());
  while (kept_bytes_ > cache_limit_ && kept_.size() > 1) {
    kept_bytes_ -= kept_.back().mask->bytes();
    index_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace tandem::grammar
