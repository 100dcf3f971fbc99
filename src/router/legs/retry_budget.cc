#include "router/legs/retry_budget.h"

#include <algorithm>
#include <cmath>

namespace tandem::router {

void RetryBudget::age(TimePoint now) {
  if (now <= at_) return;
  const double factor = std::exp(-to_seconds(now - at_) / to_seconds(options_.window));
  requests_ *= factor;
  retries_ *= factor;
  at_ = now;
}

void RetryBudget::request(TimePoint now) {
  age(now);
  requests_ += 1;
}

bool RetryBudget::take(TimePoint now) {
  age(now);
  const double allowed = options_.share * requests_ + options_.floor * to_seconds(options_.window);
  if (retries_ + 1 > allowed) return false;
  retries_ += 1;
  return true;
}

}  // namespace tandem::router
