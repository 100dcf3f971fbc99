#include "router/policy/expected_output.h"

#include <vector>

#include <gtest/gtest.h>

#include "router/policy/prefill_rate.h"
#include "router/policy/recent_tokens.h"
#include "router/policy/reported_load.h"

namespace tandem::router {
namespace {

TEST(ExpectedOutput, BeforeAnythingWasSeenItIsTheUsualWithinTheLimit) {
  const ExpectedOutput learned;
  EXPECT_EQ(learned.expect(1, 2, 0), ExpectedOutput::kUsual);
  EXPECT_EQ(learned.expect(1, 2, 10), 10);
  EXPECT_EQ(learned.expect(1, 2, 100000), ExpectedOutput::kUsual);
}

TEST(ExpectedOutput, AKeyHasItsOwnMeanAndANewOneItsModels) {
  ExpectedOutput learned;
  for (int i = 0; i < 10; ++i) {
    learned.observe(1, 9, 1000);
    learned.observe(2, 9, 10);
  }
  EXPECT_EQ(learned.expect(1, 9, 0), 1000);
  EXPECT_EQ(learned.expect(2, 9, 0), 10);
  EXPECT_GT(learned.expect(3, 9, 0), 100);
  EXPECT_LT(learned.expect(3, 9, 0), 1000);
  EXPECT_EQ(learned.expect(1, 8, 0), ExpectedOutput::kUsual) << "another model";
}

TEST(ExpectedOutput, FollowsAClientThatChanges) {
  ExpectedOutput learned;
  for (int i = 0; i < 1000; ++i) learned.observe(1, 9, 2000);
  for (int i = 0; i < 150; ++i) learned.observe(1, 9, 20);
  EXPECT_LT(learned.expect(1, 9, 0), 60);
}

TEST(ExpectedOutput, StaysWithinItsBytesAndKeepsWhatIsUsed) {
  ExpectedOutput learned(100 * ExpectedOutput::kEntryBytes);
  for (uint64_t key = 1; key <= 10000; ++key) {
    learned.observe(key, 9, 5);
    learned.observe(77777, 9, 500);
    EXPECT_LE(learned.bytes(), 100 * ExpectedOutput::kEntryBytes);
  }
  EXPECT_EQ(learned.expect(77777, 9, 0), 500);
}

TEST(ExpectedOutput, HostileCountsStayInRange) {
  ExpectedOutput learned;
  for (int i = 0; i < 8; ++i) learned.observe(1, 9, INT64_MAX);
  EXPECT_GT(learned.expect(1, 9, 0), 0);
  for (int i = 0; i < 100; ++i) learned.observe(2, 9, -5);
  EXPECT_EQ(learned.expect(2, 9, 0), 1);
}

TEST(PrefillRate, OneRanksMeasurementIsWhatTheOthersAreExpectedToDo) {
  std::vector<PrefillRate> ranks;
  EXPECT_DOUBLE_EQ(PrefillRate::shared(ranks), PrefillRate().tokens_per_second());
  ranks.resize(2);
  TimePoint now{};
  for (int i = 0; i < 50; ++i, now += std::chrono::seconds(1))
    ranks[1].computed(now, now + std::chrono::milliseconds(500), 4000);
  EXPECT_NEAR(PrefillRate::shared(ranks), 8000, 200);
}

TEST(PrefillRate, IsTheRateWhateverTheQueueTheLengthsAndTheBatches) {
  PrefillRate rate;
  EXPECT_NEAR(rate.tokens_per_second(), 2000, 1);
  TimePoint now{std::chrono::seconds(100)};
  // Five prompts sent at once, computed one after another at 8,000 tokens per second.
  for (int round = 0; round < 20; ++round) {
    const TimePoint sent = now;
    for (const int64_t tokens : {4000, 100, 12000, 64, 800}) {
      now += from_seconds(static_cast<double>(tokens) / 8000);
      rate.computed(sent, now, tokens);
    }
    now += std::chrono::seconds(1);  // idle
  }
  EXPECT_NEAR(rate.tokens_per_second(), 8000, 100);
  // Two that are computed together and end together.
  for (int round = 0; round < 200; ++round) {
    const TimePoint sent = now;
    now += std::chrono::seconds(1);
    rate.computed(sent, now, 500);
    rate.computed(sent, now, 500);
  }
  EXPECT_NEAR(rate.tokens_per_second(), 1000, 300) << "slower now";
}

TEST(RecentTokens, DecayAndNeverDependOnWhenTheyAreLookedAt) {
  RecentTokens one;
  RecentTokens two;
  const TimePoint start{std::chrono::seconds(100)};
  for (int i = 0; i < 10; ++i) {
    one.add(100, start + std::chrono::seconds(i));
    two.add(100, start + std::chrono::seconds(i));
    (void)one.at(start + std::chrono::seconds(i));
  }
  const TimePoint later = start + std::chrono::seconds(70);
  EXPECT_DOUBLE_EQ(one.at(later), two.at(later));
  EXPECT_GT(one.at(start + std::chrono::seconds(9)), 950);
  EXPECT_LT(one.at(later), 700);
  EXPECT_LT(one.at(start + std::chrono::seconds(2000)), 1);
}

TEST(ReportedLoad, OursCountsOnceOthersAsLastReported) {
  ReportedLoad load;
  EXPECT_EQ(load.total(500), 500);
  load.reported(1200, 500);  // others have 700 there
  EXPECT_EQ(load.total(500), 1200);
  EXPECT_EQ(load.total(900), 1600);  // sent since: counts before the next report
  EXPECT_EQ(load.total(0), 700);
  load.reported(100, 500);  // an old report: never negative
  EXPECT_EQ(load.total(0), 0);
}

}  // namespace
}  // namespace tandem::router
