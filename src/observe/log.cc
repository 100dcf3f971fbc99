#include "observe/log.h"

#include <memory>
#include <mutex>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace tandem::observe {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

struct LogState {
  std::mutex lock;
  std::shared_ptr<spdlog::logger> logger;

  LogState() {
    logger = std::make_shared<spdlog::logger>(
        "tandem", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_level(spdlog::level::info);
    logger->flush_on(spdlog::level::trace);
    set_name("");
  }

  void set_name(std::string_view name) {
    std::string pattern = "%Y-%m-%d %H:%M:%S.%e %^%-7l%$ ";
    if (!name.empty()) {
      pattern += '[';
      for (char c : name) {
        if (c == '%') pattern += '%';
        pattern += c;
      }
      pattern += "] ";
    }
    logger->set_pattern(pattern + "%v");
  }
};

// Leaked on purpose: threads may log while the process exits.
LogState& state() {
  static auto* const instance = new LogState;
  return *instance;
}

// One event is one line: a client's bytes cannot forge another.
std::string escape_controls(std::string_view line) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(line.size());
  for (char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

}  // namespace

bool set_log_level(std::string_view name) {
  static constexpr std::pair<std::string_view, LogLevel> kNames[] = {
      {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff}};
  for (const auto& [known, level] : kNames) {
    if (known != name) continue;
    set_log_level(level);
    return true;
  }
  return false;
}

void set_log_level(LogLevel level) { state().logger->set_level(to_spdlog(level)); }

LogLevel log_level() {
  switch (state().logger->level()) {
    case spdlog::level::trace:
      return LogLevel::kTrace;
    case spdlog::level::debug:
      return LogLevel::kDebug;
    case spdlog::level::info:
      return LogLevel::kInfo;
    case spdlog::level::warn:
      return LogLevel::kWarning;
    case spdlog::level::err:
    case spdlog::level::critical:
      return LogLevel::kError;
    default:
      return LogLevel::kOff;
  }
}

void set_log_name(std::string_view name) {
  const std::lock_guard guard(state().lock);
  state().set_name(name);
}

bool log_enabled(LogLevel level) { return state().logger->should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view line) {
  const std::string safe = escape_controls(line);
  state().logger->log(to_spdlog(level), spdlog::string_view_t(safe.data(), safe.size()));
}

}  // namespace tandem::observe
