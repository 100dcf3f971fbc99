// Finds the spellings of special tokens in text: leftmost, then longest, through a byte trie. A
// token may take the white space beside it, or stand only where no word touches it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem::text {

class SpecialMatcher {
 public:
  struct Rules {
    bool control = false;  // found only when control tokens are asked for
    bool strip_left = false;
    bool strip_right = false;
    bool single_word = false;
    bool guarded = false;  // where permits are asked for, found only behind one
  };
  struct Match {
    size_t begin = std::string_view::npos;  // npos: none
    size_t end = 0;
    int32_t token = -1;
  };

  SpecialMatcher() { nodes_.emplace_back(); }
  // Empty spellings are ignored; of equal ones the first added wins.
  void add(std::string_view spelling, int32_t token, Rules rules);
  bool empty() const { return nodes_.size() == 1; }
  // The longest match that begins at `begin`, if any. `permit`: the text that has to precede
  // guarded spellings, and becomes part of the match; empty: none has to.
  Match match_at(std::string_view text, size_t begin, bool control,
                 std::string_view permit = {}) const;
  // First match at or after `from`. O(length of text times the longest spelling).
  Match find(std::string_view text, size_t from, bool control, std::string_view permit = {}) const;

 private:
  struct Node {
    int32_t token = -1;
    Rules rules;
    std::vector<std::pair<char, uint32_t>> next;
  };

  std::array<bool, 256> first_{};
  std::vector<Node> nodes_;
};

}  // namespace tandem::text
