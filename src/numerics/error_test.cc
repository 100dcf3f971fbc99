#include "numerics/error.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tandem::numerics {
namespace {

TEST(Compare, FindsTheWorstEntryAndCountsNonFiniteDifferences) {
  const std::vector<float> expected = {1, -4, 2, NAN, INFINITY};
  const std::vector<float> actual = {1.5F, -4, 1, NAN, 7};
  const ErrorStats stats = compare(actual, expected);
  EXPECT_EQ(stats.max_abs, 1.0);
  EXPECT_EQ(stats.worst_index, 2U);
  EXPECT_EQ(stats.max_relative_to_peak(), 0.25);
  EXPECT_EQ(stats.non_finite, 1U);
}

TEST(Divergence, IsZeroForEqualDistributionsAndMatchesAHandComputedCase) {
  const std::vector<float> reference = {0, 1, 2};
  const std::vector<float> shifted = {5, 6, 7};
  EXPECT_NEAR(kl_divergence(reference, shifted), 0, 1e-12);
  const std::vector<float> half = {std::log(0.5F), std::log(0.5F)};
  const std::vector<float> quarter = {std::log(0.25F), std::log(0.75F)};
  EXPECT_NEAR(kl_divergence(half, quarter), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0), 1e-7);
}

TEST(Argmax, TakesTheLowestOfTiesAndIgnoresNan) {
  EXPECT_EQ(argmax(std::vector<float>{NAN, 1, 3, 3}), 2U);
}

}  // namespace
}  // namespace tandem::numerics
