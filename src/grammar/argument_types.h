// The JSON types that a tool's arguments may have, by a quick look at its schema: what parsers take
// for a type where arguments are written as raw text, and what grammars must therefore avoid. Pure.
#pragma once

#include <string_view>

#include "base/json_value.h"

namespace tandem::grammar {

// The types that a value may have, as bits.
struct ArgumentTypes {
  static constexpr unsigned kString = 1;
  static constexpr unsigned kNumber = 2;  // and integers
  static constexpr unsigned kBoolean = 4;
  static constexpr unsigned kNull = 8;
  static constexpr unsigned kObject = 16;
  static constexpr unsigned kArray = 32;
  static constexpr unsigned kAny = 63;
  unsigned bits = kAny;
  bool only_string() const { return bits == kString; }
};

// Of the property `key` of `parameters` (may be null): $ref, anyOf, oneOf, allOf, enum and const
// are looked through.
ArgumentTypes argument_types(const JsonValue* parameters, std::string_view key);
bool declares(const JsonValue* parameters, std::string_view key);

// What is left of `parameters` that any grammar can keep to: its own properties with their
// ArgumentTypes, and which are required. `words`: only those properties whose names are words.
JsonValue simple_parameters(const JsonValue& parameters, bool words);

}  // namespace tandem::grammar
