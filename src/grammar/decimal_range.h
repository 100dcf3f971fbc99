// Numbers between bounds, exactly: decimal text of any length, never a floating-point number.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/regex_store.h"

namespace tandem::grammar {

// Longest integer part and fraction that is ever generated, unless a bound has more.
inline constexpr uint32_t kMostDigits = 24;

struct Decimal {
  bool negative = false;      // never of zero
  std::string whole = "0";    // without needless zeros
  std::string fraction = {};  // without zeros at its end
  bool is_integer() const { return fraction.empty(); }
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  // As it is spelled in an answer.
  std::string text() const;
  bool operator==(const Decimal&) const = default;
};
// Of a JSON number; nothing when it has more than some hundred digits.
std::optional<Decimal> parse_decimal(std::string_view number);
// <0, 0, >0
int compare(const Decimal& a, const Decimal& b);

struct Bound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRules {
  bool integer = false;
  std::optional<Bound> lowest;
  std::optional<Bound> highest;
  std::vector<Decimal> multiples;
};
// A value against the rules.
bool obeys(const Decimal& value, const NumberRules& rules);
// The texts of all numbers that obey. Nothing when a step is too fine or too large (2^31 after
// scaling).
std::optional<RegexId> number_regex(RegexStore& store, const NumberRules& rules);

}  // namespace tandem::grammar
