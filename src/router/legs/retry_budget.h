// RetryBudget: how many repetitions all requests together may have. In a sliding window (an
// exponential average) repetitions stay under a share of the requests plus a floor per second, so
// that a fleet in trouble is not buried under repeats. Pure; one thread.
#pragma once

#include "base/clock.h"

namespace tandem::router {

struct RetryBudgetOptions {
  double share = 0.2;  // repetitions per request
  double floor = 10;   // repetitions per second that are always allowed
  Duration window = std::chrono::seconds(10);
};

class RetryBudget {
 public:
  explicit RetryBudget(RetryBudgetOptions options = {}) : options_(options) {}

  void request(TimePoint now);  // a new request came
  // Takes one repetition. False: none is left now.
  bool take(TimePoint now);

 private:
  void age(TimePoint now);

  RetryBudgetOptions options_;
  double requests_ = 0;
  double retries_ = 0;
  TimePoint at_ = {};
};

}  // namespace tandem::router
