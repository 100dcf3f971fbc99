// Python's str.format, as far as templates use it.
#include <charconv>
#include <optional>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"

namespace tandem::text::jinja {

namespace {

// The number that is all of `text`.
std::optional<size_t> number_of(std::string_view text) {
  size_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end.ec != std::errc() || end.ptr != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

// One field: which argument, then attributes and items of it.
class Field {
 public:
  Field(Runtime& runtime, const Arguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  Value value(std::string_view path, size_t& automatic) {
    const size_t head = std::min(path.find_first_of(".["), path.size());
    const std::string_view name = path.substr(0, head);
    path.remove_prefix(head);
    Value at;
    const auto index = name.empty() ? std::optional<size_t>(automatic++) : number_of(name);
    if (index) {
      if (*index >= arguments_.positional.size()) return runtime_.fail("format lacks an argument");
      at = arguments_.positional[*index];
    } else {
      const Value* found = nullptr;
      for (const auto& [key, given] : arguments_.keywords) {
        if (key == name) found = &given;
      }
      if (found == nullptr) return runtime_.fail("format lacks an argument");
      at = *found;
    }
    while (!path.empty() && !runtime_.failed()) at = step(at, path);
    return at;
  }

 private:
  Value step(const Value& at, std::string_view& path) {
    if (path[0] == '.') {
      path.remove_prefix(1);
      const size_t end = std::min(path.find_first_of(".["), path.size());
      const std::string_view name = path.substr(0, end);
      path.remove_prefix(end);
      return runtime_.attribute(at, name);
    }
    const size_t close = path.find(']');
    if (path[0] != '[' || close == std::string_view::npos) {
      return runtime_.fail("a broken format field");
    }
    const std::string_view key = path.substr(1, close - 1);
    path.remove_prefix(close + 1);
    const auto index = number_of(key);
    return runtime_.item(
        at, index ? Value::integer(static_cast<int64_t>(*index)) : Value::string(std::string(key)));
  }
  Runtime& runtime_;
  const Arguments& arguments_;
};

}  // namespace

Value Runtime::format_braces(std::string_view format, const Arguments& arguments) {
  std::string out;
  size_t automatic = 0;
  Field field(*this, arguments);
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    const bool twice = i + 1 < format.size() && format[i + 1] == c;
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (twice) {
      out += c;
      ++i;
      continue;
    }
    const size_t close = format.find('}', i);
    if (c == '}' || close == std::string_view::npos) return fail("a lone brace in a format");
    std::string_view path = format.substr(i + 1, close - i - 1);
    i = close;
    bool repr = false;
    if (path.ends_with("!r") || path.ends_with("!s")) {
      repr = path.ends_with("!r");
      path.remove_suffix(2);
    }
    if (path.find_first_of(":!{") != std::string_view::npos) {
      return fail("format specifications are not supported");
    }
    const Value value = field.value(path, automatic);
    if (failed()) return {};
    out += repr ? to_repr(value) : to_str(value);
    if (out.size() > options_.limits.string_bytes || !charge(1)) break;
  }
  return make_string(std::move(out));
}

}  // namespace tandem::text::jinja
