// What the schemas of the offered tools say about arguments: formats that write them as raw text
// take each value's JSON type from there. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "grammar/argument_types.h"

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

using grammar::argument_types;
using grammar::ArgumentTypes;
using grammar::declares;

// Raw text as JSON of one of the types: what reads as such a value is one, else it is a string.
std::string argument_json(std::string_view raw, ArgumentTypes types);

}  // namespace tandem::api
