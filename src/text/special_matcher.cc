#include "text/special_matcher.h"

#include <algorithm>

namespace tandem::text {

void SpecialMatcher::add(std::string_view spelling, int32_t token) {
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
  if (nodes_[at].token < 0) nodes_[at].token = token;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from) const {
  Match match;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_[static_cast<uint8_t>(text[begin])]) continue;
    uint32_t at = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto& next = nodes_[at].next;
      const auto found =
          std::find_if(next.begin(), next.end(), [&](auto& n) { return n.first == text[i]; });
      if (found == next.end()) break;
      at = found->second;
      if (nodes_[at].token >= 0) match = {begin, i + 1, nodes_[at].token};
    }
    if (match.token >= 0) break;
  }
  return match;
}

}  // namespace tandem::text
