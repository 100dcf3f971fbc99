#include "router/legs/retry_budget.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using namespace std::chrono_literals;

int taken(RetryBudget& budget, TimePoint now) {
  int count = 0;
  while (count < 10000 && budget.take(now)) ++count;
  return count;
}

TEST(RetryBudget, AShareOfTheRequestsAndAFloor) {
  RetryBudget budget({.share = 0.2, .floor = 1, .window = 10s});
  const TimePoint now = TimePoint() + 1h;
  EXPECT_EQ(taken(budget, now), 10) << "the floor alone";
  for (int i = 0; i < 1000; ++i) budget.request(now);
  EXPECT_EQ(taken(budget, now), 200);
}

TEST(RetryBudget, OldRequestsCountNoMore) {
  RetryBudget budget({.share = 0.2, .floor = 0, .window = 10s});
  const TimePoint now = TimePoint() + 1h;
  for (int i = 0; i < 1000; ++i) budget.request(now);
  EXPECT_EQ(taken(budget, now + 2min), 0);
}

TEST(RetryBudget, WhatWasTakenComesBackWithTime) {
  RetryBudget budget({.share = 0, .floor = 1, .window = 10s});
  const TimePoint now = TimePoint() + 1h;
  EXPECT_EQ(taken(budget, now), 10);
  EXPECT_EQ(taken(budget, now), 0);
  EXPECT_EQ(taken(budget, now + 10s), 6) << "10 - 10 / e";
}

}  // namespace
}  // namespace tandem::router
