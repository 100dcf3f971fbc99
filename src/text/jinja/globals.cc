// Global functions: range, dict, namespace, raise_exception, strftime_now.
#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja/runtime.h"

namespace tandem::text::jinja {

namespace {

constexpr std::array<std::string_view, 5> kGlobals = {"range", "dict", "namespace",
                                                      "raise_exception", "strftime_now"};
constexpr int64_t kMaxRange = 100'000;  // as the reference sandbox

Value make_range(Runtime& runtime, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.keywords.empty() ||
      !std::all_of(given.begin(), given.end(), [](const Value& v) { return v.is_integral(); })) {
    return runtime.fail("range needs one to three integers");
  }
  const int64_t start = given.size() == 1 ? 0 : given[0].as_int();
  const int64_t stop = given.size() == 1 ? given[0].as_int() : given[1].as_int();
  const int64_t step = given.size() == 3 ? given[2].as_int() : 1;
  if (step == 0) return runtime.fail("range with a step of zero");
  std::vector<Value> values;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(values.size()) >= kMaxRange) return runtime.fail("range is too long");
    values.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.checked_list(std::move(values));
}

// dict(...) and namespace(...): an optional dict, then keywords.
bool collect_fields(Runtime& runtime, const Arguments& arguments, Dict& fields) {
  for (const Value& value : arguments.positional) {
    const Dict* dict = value.as_dict();
    if (!dict) {
      runtime.fail("expected a dict or keyword arguments");
      return false;
    }
    for (const auto& [key, item] : dict->items) fields.set(key, item);
    runtime.charge(dict->items.size() * (1 + fields.items.size() / 8));
  }
  for (const auto& [key, item] : arguments.keywords) fields.set(key, item);
  return true;
}

Value format_now(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.positional[0].is_string()) {
    return runtime.fail("strftime_now needs a format");
  }
  const std::time_t now = runtime.options().now.value_or(std::time(nullptr));
  std::tm parts{};
  if (localtime_r(&now, &parts) == nullptr) return runtime.fail("the time is out of range");
  const std::string& format = arguments.positional[0].str();
  if (format.empty()) return Value::string("");
  if (format.size() > 256) return runtime.fail("the time format is too long");
  std::string buffer(4096, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts));
  return runtime.make_string(std::move(buffer));
}

}  // namespace

bool is_global(std::string_view name) {
  return std::find(kGlobals.begin(), kGlobals.end(), name) != kGlobals.end();
}

Value Runtime::global(std::string_view name, const Arguments& arguments) {
  if (!charge(1)) return {};
  if (name == "range") return make_range(*this, arguments);
  if (name == "strftime_now") return format_now(*this, arguments);
  if (name == "raise_exception") {
    if (arguments.positional.size() != 1 || !arguments.positional[0].is_string()) {
      return fail("raise_exception needs a message");
    }
    return raise(arguments.positional[0].str());
  }
  if (name == "dict") {
    Dict fields;
    if (!collect_fields(*this, arguments, fields)) return {};
    return checked_dict(std::move(fields.items));
  }
  auto made = std::make_shared<Namespace>();
  namespaces_.push_back(made);
  if (!charge(16) || !collect_fields(*this, arguments, made->fields)) return {};
  return Value(std::move(made));
}

}  // namespace tandem::text::jinja
