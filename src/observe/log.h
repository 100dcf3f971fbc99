// Log: human lines on stderr through one asynchronous-free sink. Never prompts, outputs, keys or
// secrets. Thread-safe. Format strings are fmt's: log_info("worker {} is down", url).
#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

namespace tandem::observe {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

// "trace", "debug", "info", "warning", "error", "off"; anything else leaves the level and returns
// false.
bool set_log_level(std::string_view name);
void set_log_level(LogLevel level);
LogLevel log_level();
// Put before every line, for example "router" or "prefill-0".
void set_log_name(std::string_view name);

bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);  // control characters are escaped

namespace detail {
template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
}  // namespace detail

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  detail::log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  detail::log_at(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  detail::log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace tandem::observe
