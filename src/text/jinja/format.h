// How Python prints values: str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "text/jinja/value.h"

namespace tandem::text::jinja {

std::string format_float(double value);  // repr(float)
// With &, <, >, " and ' as entities.
std::string escape_html(std::string_view text);
std::string to_str(const Value& value);
std::string to_repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  std::string_view sentinel = {};  // written as it is even with ensure_ascii
};
// Nothing when the value holds something JSON cannot say (undefined, functions).
std::optional<std::string> to_json(const Value& value, const JsonStyle& style);

// Integers that fit 64 bits are int, larger ones keep their digits, other numbers are float.
Value from_json(const JsonValue& json);

}  // namespace tandem::text::jinja
