#include "config/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/bytes.h"

namespace tandem::config {
namespace {

tl::unexpected<Error> bad(const std::string& what) {
  return make_error(400, "invalid_option", what);
}

// The number at the start of `text`; the rest is the unit.
std::optional<double> leading_number(std::string_view& text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
  return value;
}

Result<int64_t> parse_integer(const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < least || value > most) {
    return bad("\"" + text + "\" is not a whole number from " + std::to_string(least) + " to " +
               std::to_string(most));
  }
  return value;
}

std::string format_duration(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + "s" : std::to_string(ms) + "ms";
}

}  // namespace

Result<size_t> parse_size(std::string_view text) {
  std::string_view unit = text;
  const auto number = leading_number(unit);
  constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "G", "T"};
  if (number) {
    for (size_t power = 0; power < kUnits.size(); ++power) {
      const std::string prefix(kUnits[power]);
      if (unit != prefix && unit != prefix + "B" && (power == 0 || unit != prefix + "iB")) continue;
      const double bytes = *number * std::pow(1024.0, static_cast<double>(power));
      if (bytes > 9e15) break;
      return static_cast<size_t>(bytes);
    }
  }
  return bad("\"" + std::string(text) + "\" is not a size such as 512M or 2G");
}

Result<Duration> parse_duration(std::string_view text) {
  std::string_view unit = text;
  const auto number = leading_number(unit);
  const double scale = unit == "ms"                  ? 1e-3
                       : unit.empty() || unit == "s" ? 1
                       : unit == "m"                 ? 60
                       : unit == "h"                 ? 3600
                                                     : 0;
  if (!number || scale == 0 || *number * scale > 1e9)
    return bad("\"" + std::string(text) + "\" is not a time such as 250ms, 30s or 5m");
  return from_seconds(*number * scale);
}

Options::Options(std::string command, std::string summary)
    : command_(std::move(command)), summary_(std::move(summary)) {}

void Options::positional(std::string& target, std::string name, std::string help, bool required) {
  std::string metavar = name;
  add({Kind::kPositional, std::move(name), std::move(metavar), std::move(help), target, required,
       [&target](const auto& values) -> Status {
         target = values.back();
         return {};
       }});
}

void Options::value(std::string& target, std::string name, std::string metavar, std::string help) {
  add({Kind::kValue, std::move(name), std::move(metavar), std::move(help), target, false,
       [&target](const auto& values) -> Status {
         target = values.back();
         return {};
       }});
}

void Options::value(int32_t& target, std::string name, std::string metavar, std::string help,
                    int32_t least, int32_t most) {
  add({Kind::kValue, std::move(name), std::move(metavar), std::move(help), std::to_string(target),
       false, [&target, least, most](const auto& values) -> Status {
         TANDEM_TRY(number, parse_integer(values.back(), least, most));
         target = static_cast<int32_t>(number);
         return {};
       }});
}

void Options::value(uint16_t& target, std::string name, std::string metavar, std::string help) {
  add({Kind::kValue, std::move(name), std::move(metavar), std::move(help), std::to_string(target),
       false, [&target](const auto& values) -> Status {
         TANDEM_TRY(number, parse_integer(values.back(), 0, 65535));
         target = static_cast<uint16_t>(number);
         return {};
       }});
}

void Options::value(Bytes& target, std::string name, std::string metavar, std::string help) {
  add({Kind::kValue, std::move(name), std::move(metavar), std::move(help),
       format_bytes(target.value), false, [&target](const auto& values) -> Status {
         TANDEM_TRY(size, parse_size(values.back()));
         target.value = size;
         return {};
       }});
}

void Options::value(Duration& target, std::string name, std::string metavar, std::string help) {
  add({Kind::kValue, std::move(name), std::move(metavar), std::move(help), format_duration(target),
       false, [&target](const auto& values) -> Status {
         TANDEM_TRY(duration, parse_duration(values.back()));
         target = duration;
         return {};
       }});
}

void Options::list(std::vector<std::string>& target, std::string name, std::string metavar,
                   std::string help) {
  add({Kind::kList, std::move(name), std::move(metavar), std::move(help), "", false,
       [&target](const auto& values) -> Status {
         target = values;
         return {};
       }});
}

void Options::flag(bool& target, std::string name, std::string help) {
  add({Kind::kFlag, std::move(name), "", std::move(help), "", false,
       [&target](const auto& values) -> Status {
         if (values.back() != "true" && values.back() != "false") return bad("it is true or false");
         target = values.back() == "true";
         return {};
       }});
}

void Options::choice(std::string& target, std::string name, std::vector<std::string> words,
                     std::string help) {
  std::string metavar;
  for (const auto& word : words) metavar += (metavar.empty() ? "" : "|") + word;
  add({Kind::kValue, std::move(name), metavar, std::move(help), target, false,
       [&target, words = std::move(words), metavar](const auto& values) -> Status {
         if (std::ranges::find(words, values.back()) == words.end())
           return bad("\"" + values.back() + "\" is not one of " + metavar);
         target = values.back();
         return {};
       }});
}

void Options::example(std::string line) { examples_.push_back(std::move(line)); }

void Options::tables(std::string name, std::function<Status(const Table&)> add) {
  tables_.emplace_back(std::move(name), std::move(add));
}

void Options::hide(std::string_view name) {
  for (Spec& spec : specs_) spec.hidden = spec.hidden || spec.name == name;
}

const Options::Spec* Options::find(std::string_view name) const {
  const auto at = std::ranges::find(specs_, name, &Spec::name);
  return at == specs_.end() ? nullptr : &*at;
}

}  // namespace tandem::config
