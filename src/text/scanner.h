// Scanners: hand-made equivalents of the regular expressions by which known tokenizers cut text.
// One linear pass each: no recursion, no backtracking over more than a run of one class that the
// match then consumes (hundreds of thousands of equal characters cost the same per byte as any
// other text).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::text {

// One alternation of the shapes that tokenizers use. \s is White_Space, digits are \p{N}.
struct ScanRules {
  enum class Words : uint8_t {
    kSpaced,     // ` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` (GPT-2)
    kPrefixed,   // `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+TAIL*|...` (cl100k)
    kCased,      // as kPrefixed, with words cut where lower case meets upper (o200k)
    kDeepseek3,  // ASCII punctuation + letters, letters and marks, punctuation; the rest in gaps
  };
  enum class Contractions : uint8_t {
    kNone,
    kExact,   // 's|'t|'re|'ve|'m|'ll|'d, first of all alternatives
    kFolded,  // the same, ignoring case
    kSuffix,  // ignoring case, at the end of a word
  };
  Words words = Words::kSpaced;
  Contractions contractions = Contractions::kExact;
  uint8_t digits = 0;         // most digits in a piece; 0: any number
  bool digits_alone = false;  // kSpaced: a digit is a piece, as if the text ended before it
  bool marks = false;         // kPrefixed: \p{M} counts as a letter, as in [\p{L}\p{M}]+
  bool han = false;           // kCased: a run of \p{Han} is a piece
  bool slash_tail = false;    // TAIL is [\r\n/], else [\r\n]
  bool whole_tail = false;    // white space that ends the text is one piece (`\s++$`)

  bool operator==(const ScanRules&) const = default;
};

// By the name that a GGUF gives in tokenizer.ggml.pre.
std::optional<ScanRules> find_scan_rules(std::string_view name);
// By the text of a regular expression, as tokenizer.json and tiktoken's files have it.
std::optional<ScanRules> scan_rules_of(std::string_view pattern);

// End of the piece that starts at `position` (< text.size()); always greater than `position`.
size_t next_piece(const ScanRules& rules, std::string_view text, size_t position);

}  // namespace tandem::text
