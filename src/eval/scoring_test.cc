#include "eval/scoring.h"

#include <vector>

#include <gtest/gtest.h>

#include "eval/items.h"
#include "eval/progress.h"

namespace tandem::eval {
namespace {

TEST(FinalAnswer, TakesTheNumberBehindTheMark) {
  EXPECT_EQ(final_answer("5 + 7 = 12\n#### 12"), "12");
  EXPECT_EQ(final_answer("#### $1,234.50 dollars, not 7"), "1234.5");
  EXPECT_EQ(final_answer("#### -3\nQuestion: 9?\n#### 8"), "-3");
  EXPECT_EQ(final_answer("####Paris \n 4"), "Paris");
  EXPECT_EQ(final_answer("####"), "");
}

TEST(FinalAnswer, TakesTheLastNumberWithoutAMark) {
  EXPECT_EQ(final_answer("He has 3 apples and 4 pears, so 7."), "7");
  EXPECT_EQ(final_answer("The answer is 1,000,000!"), "1000000");
  EXPECT_EQ(final_answer("from 5-3"), "3");
  EXPECT_EQ(final_answer("it is -3"), "-3");
  EXPECT_EQ(final_answer("one of 1, 2"), "2");
  EXPECT_EQ(final_answer("about .50"), "0.5");
  EXPECT_EQ(final_answer("007.0"), "7");
  EXPECT_EQ(final_answer("-0"), "0");
  EXPECT_EQ(final_answer("1,23"), "23");
  EXPECT_EQ(final_answer("no number at all ... - $ +"), "");
  EXPECT_EQ(final_answer(""), "");
}

TEST(WilsonInterval, HasTheValuesOfTheFormula) {
  const Interval half = wilson_interval(50, 100);
  EXPECT_NEAR(half.low, 0.403832, 1e-6);
  EXPECT_NEAR(half.high, 0.596168, 1e-6);
  const Interval none = wilson_interval(0, 10);
  EXPECT_NEAR(none.low, 0, 1e-12);
  EXPECT_NEAR(none.high, 0.277533, 1e-6);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
}

TEST(Percentile, InterpolatesBetweenRanks) {
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile(values, 0.5), 3);
  EXPECT_EQ(percentile(values, 1), 8);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(SelectItems, IsAllTheFirstOrARepeatableSample) {
  EXPECT_EQ(select_items(3, 0, 1), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(select_items(9, 2, std::nullopt), (std::vector<size_t>{0, 1}));
  const auto sample = select_items(1000, 20, 7);
  EXPECT_EQ(sample, select_items(1000, 20, 7));
  EXPECT_NE(sample, select_items(1000, 20, 8));
  EXPECT_EQ(sample.size(), 20U);
  EXPECT_GT(sample.back(), 20U);
  for (size_t i = 1; i < sample.size(); ++i) EXPECT_LT(sample[i - 1], sample[i]);
}

TEST(FormatTime, IsShort) {
  EXPECT_EQ(format_time(7.9), "7 s");
  EXPECT_EQ(format_time(600), "10 min");
  EXPECT_EQ(format_time(7500), "2 h 05 min");
}

}  // namespace
}  // namespace tandem::eval
