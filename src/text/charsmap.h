// SentencePiece's precompiled character map: byte sequences to their replacements, as a double
// array (darts-clone's units) and a heap of zero-terminated strings. Immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::text {

class CharsMap {
 public:
  struct Match {
    size_t size;  // bytes of the text that are replaced
    std::string_view replacement;
  };

  // Errors: 400 "invalid_tokenizer" for sizes that do not fit. A damaged trie gives wrong
  // replacements, never a read outside.
  static Result<CharsMap> parse(std::string_view blob);

  // The longest, or the shortest, prefix of `text` that the map replaces.
  std::optional<Match> longest(std::string_view text) const { return find(text, true); }
  std::optional<Match> shortest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Match> find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string strings_;
};

}  // namespace tandem::text
