// PrefillRate: how fast a worker computes prompts, from when each of ours was computed. A prompt's
// own time begins when it was sent or when the one before it was done, whichever was later; so a
// queue is not taken for slowness, and prompts that are computed together count as one stretch of
// time. Sums of tokens and of time, not means of ratios: a short prompt's latency says little about
// a rate.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace tandem::router {

class PrefillRate {
 public:
  // `tokens` that were not cached were computed for a prompt sent at `sent`, by `now`.
  void computed(TimePoint sent, TimePoint now, int64_t tokens) {
    const TimePoint begin = std::max(sent, done_);
    done_ = std::max(done_, now);
    const double seconds = std::max(to_seconds(now - begin), 0.0);
    const double keep = std::exp(-seconds / kMemorySeconds);
    tokens_ = tokens_ * keep + static_cast<double>(std::max<int64_t>(tokens, 0));
    seconds_ = seconds_ * keep + seconds;
  }
  double tokens_per_second() const { return rate(tokens_, seconds_); }
  // Of several alike, each with a queue of its own: what one of them is expected to do.
  template <typename Rates>
  static double shared(const Rates& rates) {
    double tokens = 0;
    double seconds = 0;
    for (const PrefillRate& one : rates) {
      tokens += one.tokens_;
      seconds += one.seconds_;
    }
    return seconds > 0 ? rate(tokens, seconds) : PrefillRate().tokens_per_second();
  }

 private:
  static double rate(double tokens, double seconds) {
    return std::clamp(tokens / std::max(seconds, 1e-9), 1.0, 1e7);
  }
  static constexpr double kMemorySeconds = 60;  // of computing
  // A guess, believed until as much as a tenth of a second of computing was seen.
  static constexpr double kGuess = 2000;
  static constexpr double kGuessSeconds = 0.1;
  TimePoint done_{};
  double tokens_ = kGuess * kGuessSeconds;
  double seconds_ = kGuessSeconds;
};

}  // namespace tandem::router
