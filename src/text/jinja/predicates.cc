// Tests: `value is name`.
#include <algorithm>
#include <array>

#include "text/jinja/runtime.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

// Python's isupper(): some cased characters, all of them of this case.
bool cased(std::string_view text, bool want_upper) {
  bool some = false;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    i += decoded.size;
    if (want_upper ? is_lower(decoded.code_point) : is_upper(decoded.code_point)) return false;
    some = some || is_upper(decoded.code_point) || is_lower(decoded.code_point);
  }
  return some;
}

bool is_iterable(const Value& v) {
  return v.is_string() || v.as_list() || v.as_dict() || v.is_undefined();
}

std::string_view comparison(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kNames = {{
      {"eq", "=="},
      {"equalto", "=="},
      {"==", "=="},
      {"ne", "!="},
      {"!=", "!="},
      {"lt", "<"},
      {"lessthan", "<"},
      {"<", "<"},
      {"le", "<="},
      {"gt", ">"},
      {"greaterthan", ">"},
      {">", ">"},
      {"ge", ">="},
      {"in", "in"},
      {">=", ">="},
      {"<=", "<="},
  }};
  const auto found =
      std::find_if(kNames.begin(), kNames.end(), [&](auto& n) { return n.first == name; });
  return found == kNames.end() ? std::string_view{} : found->second;
}

constexpr std::array<std::string_view, 22> kTests = {
    "defined", "undefined", "none",    "string",      "mapping", "iterable", "sequence", "number",
    "integer", "float",     "boolean", "true",        "false",   "callable", "sameas",   "upper",
    "lower",   "even",      "odd",     "divisibleby", "filter",  "test"};

}  // namespace

bool is_test(std::string_view name) {
  return !comparison(name).empty() || std::find(kTests.begin(), kTests.end(), name) != kTests.end();
}

bool Runtime::test(std::string_view name, const Value& v, const Arguments& arguments) {
  if (!charge(1)) return false;
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.as_dict() != nullptr;
  if (name == "iterable") return is_iterable(v);
  if (name == "sequence") return is_iterable(v) && !(v.as_list() && v.as_list()->lazy);
  if (name == "number") return v.is_number() || v.is<BigInteger>();
  if (name == "integer") return v.is<int64_t>() || v.is<BigInteger>();
  if (name == "float") return v.is<double>();
  if (name == "boolean") return v.is<bool>();
  if (name == "true") return v.is<bool>() && v.as<bool>();
  if (name == "false") return v.is<bool>() && !v.as<bool>();
  if (name == "callable") return v.is<std::shared_ptr<Function>>();
  if (name == "upper") return v.is_string() && cased(v.str(), true);
  if (name == "lower") return v.is_string() && cased(v.str(), false);
  if (name == "filter") return v.is_string() && is_filter(v.str());
  if (name == "test") return v.is_string() && is_test(v.str());
  if (name == "even" || name == "odd") {
    const Value rest = binary("%", v, Value::integer(2));
    return !failed() && rest.truthy() == (name == "odd");
  }
  const std::string_view op = comparison(name);
  const Value* other = arguments.find(0, "other");
  if (op.empty() && name != "divisibleby" && name != "sameas") {
    fail("unknown test '" + std::string(name) + "'");
    return false;
  }
  if (!other) {
    fail("test '" + std::string(name) + "' needs an argument");
    return false;
  }
  if (!op.empty()) return compare(op, v, *other);
  if (name == "divisibleby") {
    const Value rest = binary("%", v, *other);
    return !failed() && !rest.truthy();
  }
  return v.type_name() == other->type_name() && equals(v, *other);
}

}  // namespace tandem::text::jinja
