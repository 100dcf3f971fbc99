// What the schemas of the offered tools say about arguments: formats that write them as raw text
// take each value's JSON type from there. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"

namespace tandem::api {

// The functions of a request, in the chat dialect's form ({"type": "function", "function": {...}}).
// Borrows from the JSON it was made of.
class ToolTable {
 public:
  ToolTable() = default;
  explicit ToolTable(const JsonValue& tools);

  bool empty() const { return tools_.empty(); }
  bool knows(std::string_view name) const;
  // Null: no such function, or it declares nothing.
  const JsonValue* parameters(std::string_view name) const;
  std::vector<std::string> names() const;

 private:
  struct Tool {
    std::string name;
    const JsonValue* parameters;
  };
  std::vector<Tool> tools_;
};

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

// Raw text as JSON of one of the types: what reads as such a value is one, else it is a string.
std::string argument_json(std::string_view raw, ArgumentTypes types);

}  // namespace tandem::api
