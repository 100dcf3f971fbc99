#include <functional>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "engine/scheduler/scheduler_test_support.h"

namespace tandem::engine {
namespace {

// The pass, counted from 1, in which each sequence's prompt ended.
std::map<SequenceId, int> prompt_ends(Scheduler& scheduler, int passes,
                                      const std::function<void(int)>& before = {}) {
  std::map<SequenceId, int> ends;
  for (int pass = 1; pass <= passes; ++pass) {
    if (before) before(pass);
    const auto plan = scheduler.next(TimePoint{});
    if (!plan) continue;
    for (const auto& s : plan->sequences) {
      if (s.sample && !ends.contains(s.sequence)) ends[s.sequence] = pass;
    }
    scheduler.complete(outcome_of(*plan));
  }
  return ends;
}

SequenceSpec one_token(SequenceId id, size_t prompt) {
  SequenceSpec spec = spec_of(id, prompt);
  spec.max_tokens = 1;
  return spec;
}

TEST(SchedulerPrompts, FewTokensDoNotWaitForManyThatCameBefore) {
  CountingKv kv(400, 4);
  Scheduler scheduler({.prefill_chunk = 16}, kv);
  ASSERT_TRUE(scheduler.add(one_token(1, 800)));
  const auto ends = prompt_ends(scheduler, 60, [&](int pass) {
    if (pass == 3) {
      ASSERT_TRUE(scheduler.add(one_token(2, 8)));
    }
    if (pass == 5) {
      ASSERT_TRUE(scheduler.add(one_token(3, 40)));
    }
  });
  EXPECT_EQ(ends.at(2), 3) << "at once";
  EXPECT_EQ(ends.at(3), 7) << "three passes for 40 tokens";
  EXPECT_EQ(ends.at(1), 53) << "848 rows, and no row of any pass was left unused";
  EXPECT_TRUE(kv.all_free());
}

// A long prompt whose prefix is cached is a short one.
TEST(SchedulerPrompts, WhatTheCacheHasDoesNotCount) {
  CountingKv kv(400, 4);
  Scheduler scheduler({.prefill_chunk = 16, .max_sequences = 1}, kv);
  kv.cached[2] = 390;
  ASSERT_TRUE(scheduler.add(one_token(1, 100)));
  ASSERT_TRUE(scheduler.add(one_token(2, 400)));
  const auto ends = prompt_ends(scheduler, 20);
  EXPECT_LT(ends.at(2), ends.at(1));
}

// Only what comes while patience times its rows are computed overtakes it.
TEST(SchedulerPrompts, ALongPromptIsNotOvertakenForEver) {
  for (const int32_t patience : {0, 1, 4}) {
    CountingKv kv(4000, 4);
    Scheduler scheduler({.prefill_chunk = 16, .patience = patience}, kv);
    ASSERT_TRUE(scheduler.add(one_token(1, 160)));
    SequenceId next = 2;
    const auto ends = prompt_ends(scheduler, 200, [&](int) {
      // More than a pass can take: the queue only grows.
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(scheduler.add(one_token(next++, 8)));
    });
    ASSERT_TRUE(ends.contains(1)) << patience;
    // 24 rows come for 16 that are computed.
    const int overtaking = patience * 160 / 16 * 24 / 16;
    EXPECT_LE(ends.at(1), overtaking + 160 / 16 + 2) << patience;
    EXPECT_GE(ends.at(1), overtaking) << patience;
  }
}

TEST(SchedulerPrompts, PriorityComesBeforeLength) {
  CountingKv kv(400, 4);
  Scheduler scheduler({.prefill_chunk = 16}, kv);
  SequenceSpec batch = one_token(1, 8);
  batch.priority = -1;
  ASSERT_TRUE(scheduler.add(batch));
  ASSERT_TRUE(scheduler.add(one_token(2, 64)));
  const auto ends = prompt_ends(scheduler, 10);
  EXPECT_EQ(ends.at(2), 4);
  EXPECT_EQ(ends.at(1), 5);
}

// One tenant's many short prompts do not keep another one's long prompt waiting: passes are shared.
TEST(SchedulerPrompts, TenantsShareWhatPassesHold) {
  CountingKv kv(4000, 4);
  Scheduler scheduler({.prefill_chunk = 16}, kv);
  SequenceSpec long_one = spec_of(1, 320, "a");
  long_one.max_tokens = 1;
  ASSERT_TRUE(scheduler.add(long_one));
  SequenceId next = 2;
  const auto ends = prompt_ends(scheduler, 60, [&](int) {
    for (int i = 0; i < 3; ++i) {
      SequenceSpec spec = spec_of(next++, 8, "b");
      spec.max_tokens = 1;
      ASSERT_TRUE(scheduler.add(spec));
    }
  });
  EXPECT_GE(ends.at(1), 39) << "half of each pass";
  EXPECT_LE(ends.at(1), 43);
}

// A token of the answer is computed as one: how it comes to be computed again, and in which rows,
// depends on what else runs, and its numerics must not.
TEST(SchedulerPrompts, RowsOfAnswersAreNeverRowsOfAPrompt) {
  for (const int32_t chunk : {1, 2, 3, 5, 64}) {
    CountingKv kv(7, 4);
    kv.cannot_rewrite_before = 100;  // rolled back: computed again from its start
    Scheduler scheduler({.max_batch_rows = 80, .prefill_chunk = chunk, .max_sequences = 4}, kv);
    SequenceSpec spec = spec_of(1, 6);
    spec.max_tokens = 12;
    ASSERT_TRUE(scheduler.add(spec));
    ASSERT_TRUE(scheduler.add(one_token(2, 5)));
    bool rolled_back = false;
    bool forced = false;
    for (int pass = 0; pass < 200; ++pass) {
      const auto plan = scheduler.next(TimePoint{});
      if (!plan) break;
      for (const auto& s : plan->sequences) {
        const int32_t prompt = s.sequence == 1 ? 6 : 5;
        const auto end = s.first_position + static_cast<int32_t>(s.tokens.size());
        EXPECT_EQ(s.prompt, s.first_position < prompt) << chunk;
        if (s.prompt) {
          EXPECT_LE(end, prompt) << chunk;
        }
      }
      scheduler.complete(outcome_of(*plan));
      if (scheduler.room(1) == 8 && !rolled_back) {
        rolled_back = true;
        ASSERT_TRUE(scheduler.roll_back(1, 1));
      } else if (scheduler.room(1) <= 7 && rolled_back && !forced) {
        const std::vector<int32_t> tokens = {3, 4, 5};
        forced = scheduler.replace_end(1, 0, tokens);
      }
    }
    EXPECT_TRUE(rolled_back && forced);
    EXPECT_TRUE(kv.all_free()) << chunk;
  }
}

}  // namespace
}  // namespace tandem::engine
