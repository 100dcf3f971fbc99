// Sets of code points, and the bytes that spell them: as UTF-8, or inside a JSON string. Surrogates
// are never part of a set: text is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/regex_store.h"

namespace tandem::grammar {

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

class CodePoints {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both included
  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges) : ranges_(ranges) { tidy(); }
  explicit CodePoints(std::vector<Range> ranges) : ranges_(std::move(ranges)) { tidy(); }
  static CodePoints all() { return {{0, kLastCodePoint}}; }
  static CodePoints of(uint32_t code_point) { return {{code_point, code_point}}; }
  // By a general category or property ("L", "Lu", "Letter", "digit"); nothing when the name is not
  // known.
  static bool find_property(std::string_view name, CodePoints& out);

  void add(const CodePoints& other);
  CodePoints inverted() const;
  CodePoints without(const CodePoints& other) const;
  // With the other case of every ASCII, Latin, Greek and Cyrillic letter.
  CodePoints any_case() const;
  bool has(uint32_t code_point) const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  void tidy();
  std::vector<Range> ranges_;
};

// How a text is spelled.
enum class Spelling : uint8_t {
  kUtf8,
  // As between the quotes of a JSON string, in the one way that append_json_string (and Python's
  // json without ensure_ascii) has: \" \\ \b \f \n \r \t, \u00xx for other controls, everything
  // else as it is.
  kJson,
};
RegexId spell(RegexStore& store, const CodePoints& set, Spelling spelling);
// Any one character.
RegexId any_character(RegexStore& store, Spelling spelling);
std::string spell(std::string_view text, Spelling spelling);

// The code point at `at`, which moves behind it; U+FFFD for what is not UTF-8.
uint32_t next_code_point(std::string_view text, size_t& at);
void append_code_point(std::string& out, uint32_t code_point);

}  // namespace tandem::grammar
