#include "text/special_matcher.h"

#include <algorithm>

#include "text/unicode.h"

namespace tandem::text {

void SpecialMatcher::add(std::string_view spelling, int32_t token, Rules rules) {
  if (spelling.empty()) return;
  first_[static_cast<uint8_t>(spelling[0])] = true;
  uint32_t at = 0;
  for (const char c : spelling) {
    auto& next = nodes_[at].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](auto& n) { return n.first == c; });
    if (found != next.end()) {
      at = found->second;
      continue;
    }
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    next.emplace_back(c, fresh);
    nodes_.emplace_back();
    at = fresh;
  }
  if (nodes_[at].token < 0) {
    nodes_[at].token = token;
    nodes_[at].rules = rules;
  }
}

namespace {

// The character that ends at `end` (> 0).
uint32_t character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return decode_utf8(text, begin).code_point;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_regex_word(character_before(text, begin))) ||
         (end < text.size() && is_regex_word(decode_utf8(text, end).code_point));
}

}  // namespace

SpecialMatcher::Match SpecialMatcher::match_at(std::string_view text, size_t begin, bool control,
                                               std::string_view permit) const {
  Match match;
  const bool permitted = !permit.empty() && text.substr(0, begin).ends_with(permit);
  const size_t edge = permitted ? begin - permit.size() : begin;
  uint32_t at = 0;
  Rules rules;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto& next = nodes_[at].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](auto& n) { return n.first == text[i]; });
    if (found == next.end()) break;
    at = found->second;
    const Node& node = nodes_[at];
    if (node.token < 0 || (node.rules.control && !control)) continue;
    if (node.rules.guarded && !permit.empty() && !permitted) continue;
    if (node.rules.single_word && touches_word(text, edge, i + 1)) continue;
    match = {edge, i + 1, node.token};
    rules = node.rules;
  }
  if (match.token < 0) return match;
  while (rules.strip_left && match.begin > 0) {
    const uint32_t before = character_before(text, match.begin);
    if (char_class(before) != kSpace) break;
    match.begin -= before < 0x80 ? 1 : before < 0x800 ? 2 : 3;
  }
  while (rules.strip_right && match.end < text.size()) {
    const Decoded next = decode_utf8(text, match.end);
    if (char_class(next.code_point) != kSpace) break;
    match.end += next.size;
  }
  return match;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from, bool control,
                                           std::string_view permit) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_[static_cast<uint8_t>(text[begin])]) continue;
    Match match = match_at(text, begin, control, permit);
    if (match.token < 0) continue;
    match.begin = std::max(match.begin, from);
    return match;
  }
  return {};
}

}  // namespace tandem::text
