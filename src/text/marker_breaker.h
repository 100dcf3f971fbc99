// Makes the spellings of a model's markers harmless in what users send, before a template renders
// it. Private to chat_template.cc. Immutable but for choose(); one per request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "text/special_matcher.h"
#include "text/tokenizer.h"

namespace tandem::text {

// Markers are the control tokens, and those user-defined tokens that the template spells or that
// look like "<|name|>". Puts a sentinel into every spelling of a marker in a string, and where the
// string's end, its begin, or both could complete one together with neighbouring text. Case is
// ignored: templates may change it.
class MarkerBreaker {
 public:
  // `template_source`: the texts of the templates.
  MarkerBreaker(const Tokenizer& tokenizer, std::string_view template_source);

  // Chooses a sentinel that `value` does not hold; false when the value holds all of them.
  bool choose(const JsonValue& value);
  // A noncharacter, U+FDD0 to U+FDEF.
  const std::string& sentinel() const { return sentinel_; }

  // Breaks each string in the values of `variables` (an object); the names are the template's.
  void apply(JsonValue& variables) const;

 private:
  void apply_value(JsonValue& value) const;
  bool apply_text(std::string& text) const;
  bool lies_within(std::string_view text) const;

  std::vector<std::string> spellings_;  // lower case
  size_t longest_ = 0;
  SpecialMatcher whole_;
  SpecialMatcher tails_;  // all but the first character or more; two bytes at least
  std::string inner_;     // spellings without their first and last byte, a NUL between
  bool first_[256] = {};
  std::string sentinel_;
};

}  // namespace tandem::text
