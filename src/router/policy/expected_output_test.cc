#include "router/policy/expected_output.h"

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "numerics/mix.h"
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

std::vector<uint64_t> blocks_of(uint64_t session, size_t count) {
  std::vector<uint64_t> blocks;
  blocks.reserve(count);
  for (size_t i = 0; i < count; ++i) blocks.push_back(mix64(session * 1000003 + i) >> 8);
  return blocks;
}

TEST(RecentTokens, CountWhatIsDifferentHoweverOftenItComes) {
  RecentTokens recent;
  const TimePoint start{std::chrono::seconds(100)};
  for (int turn = 0; turn < 20; ++turn) {
    for (uint64_t session = 0; session < 4; ++session)
      recent.touch(blocks_of(session, 4000 + 20 * turn), 16, start + std::chrono::seconds(turn));
  }
  const TimePoint now = start + std::chrono::seconds(20);
  const double truth = 4.0 * (4000 + 20 * 19) * 16;
  EXPECT_NEAR(recent.of_minute(now), truth, 0.15 * truth) << "a sample of 550 blocks";
  EXPECT_EQ(recent.of_ten_minutes(now), recent.of_minute(now));
  RecentTokens coarse;  // blocks of the sample's size: all are counted
  coarse.touch(blocks_of(1, 100), 512, now);
  coarse.touch(blocks_of(1, 120), 512, now);
  EXPECT_EQ(coarse.of_minute(now), 120 * 512);
}

TEST(RecentTokens, AreForgottenInTime) {
  RecentTokens one;
  const TimePoint start{std::chrono::seconds(100)};
  for (int i = 0; i < 10; ++i) {
    const auto blocks = blocks_of(static_cast<uint64_t>(i), 10);
    one.touch(blocks, 512, start + std::chrono::seconds(i));
  }
  const auto after = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  EXPECT_EQ(one.of_minute(after(9)), 100 * 512);
  EXPECT_LT(one.of_minute(after(62)), 100 * 512);
  EXPECT_EQ(one.of_minute(after(80)), 0);
  EXPECT_EQ(one.of_ten_minutes(after(80)), 100 * 512);
  EXPECT_EQ(one.of_ten_minutes(after(620)), 0);
  one.touch(blocks_of(0, 10), 512, after(500));
  EXPECT_EQ(one.of_ten_minutes(after(500)), 100 * 512) << "moved, not added";
  EXPECT_EQ(one.of_minute(after(500)), 10 * 512);
  one.touch(blocks_of(0, 10), 512, after(5000));
  EXPECT_EQ(one.of_ten_minutes(after(5000)), 10 * 512);
}

TEST(RecentTokens, AreWhatASetOfBlocksWithTheirTimesSays) {
  constexpr int64_t kSlot = 5;
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    RecentTokens recent;
    std::map<uint64_t, int64_t> touched;  // block, slot
    int64_t seconds = static_cast<int64_t>(seed) * 40;
    const auto truth = [&](int64_t at, int64_t slots) {
      return 512.0 * static_cast<double>(std::ranges::count_if(touched, [&](const auto& block) {
               return block.second > at / kSlot - slots;
             }));
    };
    for (int step = 0; step < 400; ++step) {
      const uint64_t pause = random() % 20;
      seconds += static_cast<int64_t>(pause == 0   ? random() % 1000
                                      : pause < 10 ? random() % 30
                                                   : 0);
      std::vector<uint64_t> blocks;
      for (uint64_t i = random() % 40; i > 0; --i) blocks.push_back(1 + random() % 300);
      recent.touch(blocks, 512, TimePoint{std::chrono::seconds(seconds)});
      for (const uint64_t block : blocks) touched[block] = seconds / kSlot;
      for (const int64_t later : {0, 4, 30, 61, 200, 599, 700}) {
        const TimePoint at{std::chrono::seconds(seconds + later)};
        ASSERT_EQ(recent.of_minute(at), truth(seconds + later, 12)) << seed << ' ' << step;
        ASSERT_EQ(recent.of_ten_minutes(at), truth(seconds + later, 120)) << seed << ' ' << step;
      }
    }
  }
}

TEST(RecentTokens, StayBoundedAndGoOnCounting) {
  constexpr double kMost = 1 << 17;
  RecentTokens recent;
  TimePoint now{std::chrono::seconds(100)};
  const auto first = blocks_of(1, 200000);
  recent.touch(first, 512, now);
  EXPECT_EQ(recent.of_minute(now), 200000 * 512.0) << "also those that are not remembered";
  recent.touch(first, 512, now);
  EXPECT_EQ(recent.of_minute(now), (kMost + 2 * (200000 - kMost)) * 512) << "and count anew";
  now += std::chrono::seconds(90);
  recent.touch(blocks_of(2, 1000), 512, now);
  EXPECT_EQ(recent.of_minute(now), 1000 * 512.0) << "full, and yet it counts";
  // Some of the first session stay for longer; the others' places are free after ten minutes.
  recent.touch(std::span(first).first(100000), 512, now);
  now += std::chrono::seconds(520);
  for (int turn = 0; turn < 3; ++turn) recent.touch(blocks_of(3, 30000), 512, now);
  EXPECT_EQ(recent.of_minute(now), 30000 * 512.0) << "remembered again";
  EXPECT_EQ(recent.of_ten_minutes(now), (1000 + 100000 + 30000) * 512.0);
}

TEST(RecentTokens, OnesThatExpiredMakeRoomWhileOthersComeAndGo) {
  RecentTokens recent;
  for (int slot = 0; slot < 400; ++slot) {
    const TimePoint now{std::chrono::seconds(100 + slot * 5)};
    // In ten minutes as many different ones as are remembered, less a twentieth.
    const auto blocks = blocks_of(static_cast<uint64_t>(slot), 1040);
    for (int twice = 0; twice < 2; ++twice) recent.touch(blocks, 512, now);
    ASSERT_EQ(recent.of_ten_minutes(now), std::min(slot + 1, 120) * 1040 * 512.0) << slot;
  }
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
