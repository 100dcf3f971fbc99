// Regular expressions as people write them (ECMA-262's syntax, which JSON Schema names; Perl-like
// ones mostly mean the same), to expressions over bytes. Refused, since no automaton has them:
// lookaround, back references, word boundaries.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/code_points.h"

namespace tandem::grammar {

struct Pattern {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CodePoints set;              // kSet
  std::vector<Pattern> parts;  // kSequence, kChoice; kRepeat: one
  uint32_t min = 0;            // kRepeat
  uint32_t max = 0;
};

// What the dot stands for: all but the line ends of ECMA-262 (\n, \r, U+2028, U+2029), which JSON
// Schema names; all but \n (Python's re, which Lark hands its terminals to, and Rust's regex); all.
enum class Dot : uint8_t { kScript, kLine, kAll };

struct PatternOptions {
  bool any_case = false;
  Dot dot = Dot::kScript;
};

inline constexpr int kPatternDepth = 200;
inline constexpr size_t kPatternParts = 20'000;

// Errors: 400 "invalid_grammar" with the position, 400 "unsupported_grammar" naming the construct.
Result<Pattern> parse_pattern(std::string_view text, const PatternOptions& options = {});

// What the whole of a text must be. Anchors at its ends are needless.
Result<RegexId> match_whole(RegexStore& store, const Pattern& pattern, Spelling spelling);
// What a text must be that holds a match somewhere (JSON Schema's "pattern").
RegexId match_within(RegexStore& store, const Pattern& pattern, Spelling spelling);

}  // namespace tandem::grammar
