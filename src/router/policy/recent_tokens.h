// RecentTokens: how much was placed on a worker lately: a sum that decays. Unlike the load in
// flight it does not fall to zero while sessions think, so it tells how many of them live there.
#pragma once

#include <cmath>

#include "base/clock.h"

namespace tandem::router {

class RecentTokens {
 public:
  void add(double tokens, TimePoint now) {
    sum_ = at(now) + tokens;
    last_ = now;
  }
  double at(TimePoint now) const {
    return now <= last_ ? sum_ : sum_ * std::exp(-to_seconds(now - last_) / kMemorySeconds);
  }

 private:
  static constexpr double kMemorySeconds = 120;  // longer than most pauses between turns
  double sum_ = 0;
  TimePoint last_{};
};

}  // namespace tandem::router
