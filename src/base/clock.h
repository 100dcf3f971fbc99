// Time as an argument: pure parts take a TimePoint; the edges read it from a Clock.
#pragma once

#include <chrono>

namespace tandem {

using Duration = std::chrono::nanoseconds;
// A point on one process's monotonic clock. Never sent to another process: deadlines travel as
// durations.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace tandem
