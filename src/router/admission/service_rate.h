// ServiceRate: tokens per second that a pool finishes while it is busy, from what it finished
// lately. Exponentially decayed sums of work and of busy time, so that a pause lowers nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace tandem::router {

class ServiceRate {
 public:
  // Time passed with work in the pool (`busy`) or without.
  void pass(TimePoint now, bool busy) {
    if (busy && now > last_) {
      const double seconds = to_seconds(now - last_);
      const double keep = std::exp(-seconds / kMemorySeconds);
      seconds_ = seconds_ * keep + kMemorySeconds * (1 - keep);
      tokens_ *= keep;
    }
    last_ = std::max(last_, now);
  }
  void finished(int64_t tokens) { tokens_ += static_cast<double>(tokens); }

  // Zero before enough was seen to tell.
  double tokens_per_second() const {
    return seconds_ < kLeastSeconds || tokens_ <= 0 ? 0 : tokens_ / seconds_;
  }

 private:
  static constexpr double kMemorySeconds = 30;  // longer than most requests, shorter than a rush
  static constexpr double kLeastSeconds = 1;
  TimePoint last_{};
  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace tandem::router
