// printf-style formatting, as Python's % on strings.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

Value Runtime::format_percent(std::string_view format, const std::vector<Value>& values) {
  std::string out;
  size_t used = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string spec = "%";
    for (++i; i < format.size() &&
              std::string_view("-+ #0123456789.").find(format[i]) != std::string_view::npos;
         ++i) {
      spec += format[i];
    }
    if (i >= format.size() || spec.size() > 8) return fail("a broken % format");
    const char kind = format[i];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (used >= values.size()) return fail("not enough arguments for the format string");
    const Value& value = values[used++];
    char buffer[512];
    if (kind == 's' || kind == 'r') {
      std::string text = kind == 's' ? to_str(value) : to_repr(value);
      const int width =
          std::abs(std::atoi(spec.c_str() + (spec.size() > 1 && spec[1] == '-' ? 2 : 1)));
      const auto length = static_cast<int>(count_code_points(text));
      const std::string padding(static_cast<size_t>(std::clamp(width - length, 0, 4096)), ' ');
      out += spec.starts_with("%-") ? text + padding : padding + text;
    } else if ((kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X' || kind == 'o') &&
               value.is_number()) {
      const double real = value.as_real();
      if (!value.is_integral() && std::abs(real) >= 9.0e18)
        return fail("a number is too large for %d");
      const int64_t number = value.is_integral() ? value.as_int() : static_cast<int64_t>(real);
      spec += "ll";
      spec += kind;
      const int size =
          std::snprintf(buffer, sizeof buffer, spec.c_str(), static_cast<long long>(number));
      if (size < 0 || size >= static_cast<int>(sizeof buffer))
        return fail("a % format is too wide");
      out += buffer;
    } else if ((kind == 'f' || kind == 'g' || kind == 'e') && value.is_number()) {
      spec += kind;
      const int size = std::snprintf(buffer, sizeof buffer, spec.c_str(), value.as_real());
      if (size < 0 || size >= static_cast<int>(sizeof buffer))
        return fail("a % format is too wide");
      out += buffer;
    } else {
      return fail(std::string("unsupported % format '") + kind + "'");
    }
  }
  if (used < values.size() && !(used == 0 && values.size() == 1 && values[0].as_dict())) {
    return fail("not all arguments were used by the format string");
  }
  return make_string(std::move(out));
}

}  // namespace tandem::text::jinja
