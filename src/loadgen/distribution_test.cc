#include "loadgen/distribution.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "loadgen/random.h"

namespace tandem::loadgen {
namespace {

// numpy.percentile's definition, said another way: the value at `share` of the way along the
// polyline through the sorted values.
double percentile_by_walking(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double target = share * static_cast<double>(values.size() - 1);
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const auto left = static_cast<double>(i);
    if (target <= left + 1)
      return values[i] * (left + 1 - target) + values[i + 1] * (target - left);
  }
  return values.back();
}

TEST(Distribution, PercentilesAreThoseOfTheDefinition) {
  Random random(3);
  for (const size_t size : {1, 2, 3, 10, 101, 1000}) {
    Distribution distribution;
    std::vector<double> values;
    for (size_t i = 0; i < size; ++i) {
      values.push_back(random.exponential());
      distribution.add(values.back());
    }
    for (const double share : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      EXPECT_NEAR(distribution.percentile(share), percentile_by_walking(values, share), 1e-12)
          << size << " values, " << share;
    }
    EXPECT_EQ(distribution.count(), size);
    EXPECT_EQ(distribution.most(), std::ranges::max(values));
    EXPECT_EQ(distribution.least(), std::ranges::min(values));
  }
}

TEST(Distribution, MeanAndDeviationAreThePopulations) {
  Distribution distribution;
  for (const double value : {1.0, 2.0, 3.0, 6.0}) distribution.add(value);
  EXPECT_DOUBLE_EQ(distribution.mean(), 3);
  EXPECT_DOUBLE_EQ(distribution.deviation(), std::sqrt(3.5));
}

TEST(Distribution, BeyondItsMemoryPercentilesStayWithinAFifthOfAPercent) {
  Random random(4);
  Distribution bounded(100);
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(0.001 + random.exponential() * 0.05);
    bounded.add(values.back());
  }
  EXPECT_FALSE(bounded.is_exact());
  for (const double share : {0.1, 0.5, 0.9, 0.99}) {
    const double truth = percentile_by_walking(values, share);
    EXPECT_NEAR(bounded.percentile(share), truth, truth * 0.003) << share;
  }
  EXPECT_EQ(bounded.most(), std::ranges::max(values));
}

TEST(Distribution, TakesAnyValueAndAnswersWithoutOne) {
  Distribution distribution;
  EXPECT_EQ(distribution.percentile(0.5), 0);
  EXPECT_TRUE(distribution.cumulative(10).empty());
  for (const double value : {-1.0, std::nan(""), HUGE_VAL, 0.0, 1e300}) distribution.add(value);
  EXPECT_EQ(distribution.count(), 5U);
  EXPECT_EQ(distribution.percentile(0), 0);
  EXPECT_EQ(distribution.percentile(1), 1e300);
  EXPECT_EQ(distribution.rough_percentile(0.5), 0);
}

TEST(Distribution, TheCurveRisesFromLeastToMost) {
  Distribution distribution;
  for (int i = 100; i > 0; --i) distribution.add(i);
  const auto curve = distribution.cumulative(11);
  ASSERT_EQ(curve.size(), 11U);
  EXPECT_EQ(curve.front(), std::pair(1.0, 0.0));
  EXPECT_EQ(curve.back(), std::pair(100.0, 1.0));
  EXPECT_TRUE(std::ranges::is_sorted(curve));
}

}  // namespace
}  // namespace tandem::loadgen
