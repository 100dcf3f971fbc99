#include "worker/ended_handoffs.h"

#include <gtest/gtest.h>

namespace tandem::worker {
namespace {

const TimePoint kStart{};

TEST(EndedHandoffs, ErrorsAreKnownForAWhileAndUnlessTheIdIsUsedAgain) {
  EndedHandoffs ended;
  ended.add("a", {500, "kv_integrity", "bad"}, kStart);
  ASSERT_NE(ended.find("a", kStart), nullptr);
  EXPECT_EQ(ended.find("a", kStart)->code, "kv_integrity");
  EXPECT_EQ(ended.find("b", kStart), nullptr);
  EXPECT_EQ(ended.find("a", kStart + EndedHandoffs::kKept), nullptr);
  ended.forget("a");
  EXPECT_EQ(ended.find("a", kStart), nullptr);
}

TEST(EndedHandoffs, TheirNumberIsBoundedAndTheLatestStay) {
  EndedHandoffs ended;
  for (size_t i = 0; i < 3 * EndedHandoffs::kMost; ++i) {
    ended.add(std::to_string(i), {500, std::to_string(i), ""}, kStart);
    ASSERT_LE(ended.size(), EndedHandoffs::kMost);
  }
  EXPECT_EQ(ended.size(), EndedHandoffs::kMost);
  EXPECT_NE(ended.find(std::to_string(3 * EndedHandoffs::kMost - 1), kStart), nullptr);
  EXPECT_EQ(ended.find("0", kStart), nullptr);
  ended.add("late", {500, "", ""}, kStart + EndedHandoffs::kKept);
  EXPECT_EQ(ended.size(), 1U) << "what is too old goes";
}

// An id that ends, is used again and ends again is known by its second end, and for its time.
TEST(EndedHandoffs, AnOldEndDoesNotTakeANewOneWithIt) {
  EndedHandoffs ended;
  ended.add("a", {500, "first", ""}, kStart);
  ended.forget("a");
  const TimePoint later = kStart + EndedHandoffs::kKept / 2;
  ended.add("a", {500, "second", ""}, later);
  ended.add("b", {500, "", ""}, kStart + EndedHandoffs::kKept);
  ASSERT_NE(ended.find("a", later), nullptr);
  EXPECT_EQ(ended.find("a", later)->code, "second");
}

}  // namespace
}  // namespace tandem::worker
