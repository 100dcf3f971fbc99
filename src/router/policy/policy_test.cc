#include "router/policy/policy.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

WorkerSnapshot worker(WorkerId id, WorkerRole role) {
  WorkerSnapshot made;
  made.id = id;
  made.role = role;
  made.key = stable_hash("http://worker-" + std::to_string(id));
  made.reusable_tokens = 1e9;  // its cache is full, where a test does not say otherwise
  return made;
}

std::vector<WorkerSnapshot> pools(int prefill, int decode, int unified = 0) {
  std::vector<WorkerSnapshot> all;
  all.reserve(static_cast<size_t>(prefill + decode + unified));
  for (int i = 0; i < prefill; ++i)
    all.push_back(worker(static_cast<WorkerId>(all.size()), WorkerRole::kPrefill));
  for (int i = 0; i < decode; ++i)
    all.push_back(worker(static_cast<WorkerId>(all.size()), WorkerRole::kDecode));
  for (int i = 0; i < unified; ++i)
    all.push_back(worker(static_cast<WorkerId>(all.size()), WorkerRole::kUnified));
  return all;
}

PlacementRequest request(int32_t prompt, std::string_view session = "s") {
  PlacementRequest made;
  made.prompt_tokens = prompt;
  made.affinity = stable_hash(session);
  return made;
}

TEST(Policy, PairsOnePrefillWithOneDecode) {
  const auto placement = choose_placement(pools(1, 1), request(500), {});
  EXPECT_EQ(placement.prefill, 0U);
  EXPECT_EQ(placement.answer, 1U);
  EXPECT_FALSE(placement.local_prefill);
}

TEST(Policy, NeedsBothHalvesOfAPairOrAUnifiedWorker) {
  EXPECT_FALSE(choose_placement(pools(2, 0), request(500), {}).found());
  EXPECT_FALSE(choose_placement(pools(0, 2), request(500), {}).found());
  EXPECT_FALSE(choose_placement({}, request(500), {}).found());
  EXPECT_TRUE(choose_placement(pools(0, 0, 1), request(500), {}).found());
}

TEST(Policy, WhatOneWorkerMustDoGoesToAnyRoleAndNeverToAPair) {
  auto alone = request(500);
  alone.one_worker = true;
  for (const auto& pool : {pools(1, 1), pools(2, 0), pools(0, 2), pools(0, 0, 1), pools(2, 2, 2)}) {
    const auto placement = choose_placement(pool, alone, {});
    EXPECT_TRUE(placement.found());
    EXPECT_EQ(placement.prefill, kNoWorker);
  }
  auto busy = pools(1, 1);
  busy[0].queued_tokens = 100000;
  EXPECT_EQ(choose_placement(busy, alone, {}).answer, 1U);
  busy[1].available = false;
  EXPECT_EQ(choose_placement(busy, alone, {}).answer, 0U);
  busy[0].available = false;
  EXPECT_FALSE(choose_placement(busy, alone, {}).found());
}

TEST(Policy, UnavailableAndExcludedWorkersAreNeverChosen) {
  auto all = pools(2, 2, 1);
  for (WorkerId a = 0; a < 5; ++a) {
    for (WorkerId b = 0; b < 5; ++b) {
      auto some = all;
      some[a].available = false;
      auto ask = request(500);
      ask.excluded = {b};
      const auto placement = choose_placement(some, ask, {});
      ASSERT_TRUE(placement.found());
      for (const WorkerId chosen : {placement.prefill, placement.answer}) {
        EXPECT_NE(chosen, a);
        EXPECT_NE(chosen, b);
      }
    }
  }
}

TEST(Policy, TheExpectedHitOutweighsAffinityButNotALongQueue) {
  auto all = pools(3, 1);
  const auto ask = request(4000);
  const WorkerId home = choose_placement(all, ask, {}).prefill;
  const WorkerId other = (home + 1) % 3;
  all[other].prefix_blocks = 200;  // 3200 tokens saved
  EXPECT_EQ(choose_placement(all, ask, {}).prefill, other);
  EXPECT_EQ(choose_placement(all, ask, {}).expected_cached, 3200);
  all[other].queued_tokens = 30000;  // 15 s for 1.6 s of work: the price of computing it again
  EXPECT_EQ(choose_placement(all, ask, {}).prefill, other);
  all[other].queued_tokens = 100000;
  EXPECT_EQ(choose_placement(all, ask, {}).prefill, home);
}

TEST(Policy, AFasterWorkerTakesLongerQueues) {
  auto all = pools(2, 1);
  all[0].prefill_rate = 10000;
  all[1].prefill_rate = 1000;
  all[0].queued_tokens = 8000;
  EXPECT_EQ(choose_placement(all, request(2000), {}).prefill, 0U);
  all[0].queued_tokens = 40000;
  EXPECT_EQ(choose_placement(all, request(2000), {}).prefill, 1U);
}

TEST(Policy, DecodeGoesToTheLeastCrowdedAndToMemoryHeadroom) {
  auto all = pools(1, 2);
  all[1].running = 10;
  EXPECT_EQ(choose_placement(all, request(100), {}).answer, 2U);
  all[2].running = 10;
  all[1].capacity_tokens = all[2].capacity_tokens = 10000;
  all[2].held_tokens = 9500;
  all[1].held_tokens = 100;
  EXPECT_EQ(choose_placement(all, request(100), {}).answer, 1U);
}

TEST(Policy, AShortTailOnADecodeWorkerThatHoldsThePrefixSkipsPrefill) {
  auto all = pools(1, 2);
  all[2].prefix_blocks = 20;  // 320 tokens
  const auto at_limit = choose_placement(all, request(320 + 256), {});
  EXPECT_TRUE(at_limit.local_prefill);
  EXPECT_EQ(at_limit.answer, 2U);
  EXPECT_EQ(at_limit.prefill, kNoWorker);
  EXPECT_EQ(at_limit.expected_cached, 320);
  EXPECT_FALSE(choose_placement(all, request(320 + 257), {}).local_prefill);
  all[2].prefix_blocks = 0;
  EXPECT_FALSE(choose_placement(all, request(100), {}).local_prefill)
      << "short, but nothing is held";
  all[2].prefix_blocks = 20;
  all[2].running = 50;
  EXPECT_FALSE(choose_placement(all, request(400), {}).local_prefill)
      << "a hot worker is not made hotter";
  all[2].running = 0;
  all[2].available = false;
  EXPECT_FALSE(choose_placement(all, request(400), {}).local_prefill);
}

TEST(Policy, AWholePromptThatIsHeldStillComputesItsLastToken) {
  auto all = pools(1, 1);
  all[0].prefix_blocks = 100;
  PolicyOptions options;
  options.local_prefill_tokens = 0;
  EXPECT_EQ(choose_placement(all, request(160), options).expected_cached, 159);
}

TEST(Policy, ASessionStaysOnItsWorkerWhilePoolsAreQuiet) {
  auto all = pools(4, 4);
  std::map<WorkerId, int> homes;
  for (int session = 0; session < 200; ++session) {
    const auto ask = request(800, "session-" + std::to_string(session));
    const auto first = choose_placement(all, ask, {});
    auto shuffled = all;
    std::reverse(shuffled.begin(), shuffled.end());
    const auto again = choose_placement(shuffled, ask, {});
    EXPECT_EQ(first.prefill, again.prefill)
        << "the order in which a router lists workers does not matter";
    EXPECT_EQ(first.answer, again.answer);
    ++homes[first.prefill];
  }
  ASSERT_EQ(homes.size(), 4U);
  for (const auto& [id, count] : homes) EXPECT_GT(count, 25) << id;
}

TEST(Policy, LosingAWorkerMovesOnlyItsSessions) {
  auto all = pools(4, 1);
  auto fewer = all;
  fewer[2].available = false;
  for (int session = 0; session < 200; ++session) {
    const auto ask = request(800, "session-" + std::to_string(session));
    const WorkerId before = choose_placement(all, ask, {}).prefill;
    const WorkerId after = choose_placement(fewer, ask, {}).prefill;
    if (before != 2) {
      EXPECT_EQ(before, after);
    }
  }
}

TEST(Policy, OneHotSessionCannotMeltItsWorker) {
  auto all = pools(4, 4);
  for (int i = 0; i < 400; ++i) {
    const auto placement = choose_placement(all, request(600, "hot"), {});
    ++all[placement.prefill].running;
    all[placement.prefill].queued_tokens += 600;
    ++all[placement.answer].running;
  }
  for (const auto& snapshot : all) {
    EXPECT_GT(snapshot.running, 75) << snapshot.id;
    EXPECT_LT(snapshot.running, 130) << snapshot.id;
  }
}

TEST(Policy, UnifiedAndPairCompeteByCost) {
  auto all = pools(1, 1, 1);
  all[2].running = 40;
  all[2].queued_tokens = 20000;
  EXPECT_EQ(choose_placement(all, request(500), {}).answer, 1U);
  all[2] = worker(2, WorkerRole::kUnified);
  all[0].queued_tokens = 20000;
  EXPECT_EQ(choose_placement(all, request(500), {}).answer, 2U);
}

TEST(Policy, ARetryOfDecodePicksAnother) {
  auto ask = request(500);
  ask.excluded = {1};
  EXPECT_EQ(choose_decode(pools(1, 2), ask, {}, 0).answer, 2U);
  ask.excluded = {1, 2};
  EXPECT_EQ(choose_decode(pools(1, 2), ask, {}, 0).answer, kNoWorker);
}

TEST(Policy, OfAWorkersRanksTheOneThatHoldsThePromptIsChosenUnlessItIsBusy) {
  std::vector<WorkerSnapshot> ranks(4, worker(0, WorkerRole::kUnified));
  for (int32_t rank = 0; rank < 4; ++rank) {
    ranks[static_cast<size_t>(rank)].rank = rank;
    ranks[static_cast<size_t>(rank)].key += static_cast<uint64_t>(rank);
  }
  ranks[2].prefix_blocks = 60;
  auto placement = choose_placement(ranks, request(1000), {});
  EXPECT_EQ(placement.answer, 0U);
  EXPECT_EQ(placement.answer_rank, 2);
  EXPECT_EQ(placement.expected_cached, 960);
  ranks[2].queued_tokens = 200'000;  // a minute of waiting
  placement = choose_placement(ranks, request(1000), {});
  EXPECT_NE(placement.answer_rank, 2);
  EXPECT_EQ(placement.expected_cached, 0);
}

TEST(Policy, APairSaysARankOfBothHalves) {
  std::vector<WorkerSnapshot> all;
  for (int32_t rank = 0; rank < 3; ++rank) {
    for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
      all.push_back(worker(role == WorkerRole::kPrefill ? 0 : 1, role));
      all.back().rank = rank;
      all.back().key += static_cast<uint64_t>(rank);
      all.back().running = rank == 1 ? 0 : 50;
      all.back().queued_tokens = rank == 1 ? 0 : 50'000;
    }
  }
  for (const PolicyKind kind : {PolicyKind::kAuto, PolicyKind::kAffinity, PolicyKind::kCache}) {
    PolicyOptions options;
    options.kind = kind;
    const auto placement = choose_placement(all, request(1000), options);
    EXPECT_EQ(placement.prefill_rank, 1) << policy_name(kind);
    EXPECT_EQ(placement.answer_rank, 1) << policy_name(kind);
    EXPECT_EQ(choose_decode(all, request(1000), options, 0).answer_rank, 1) << policy_name(kind);
  }
}

TEST(Policy, PairsAreMadeOnlyWithinAGroup) {
  auto all = pools(2, 2);
  all[1].group = all[3].group = 1;  // 0 with 2, 1 with 3
  for (const std::string& name : policy_names()) {
    PolicyOptions options;
    options.kind = *parse_policy(name);
    for (uint64_t turn = 0; turn < 50; ++turn) {
      auto ask = request(700, "session-" + std::to_string(turn));
      ask.turn = turn;
      const auto placement = choose_placement(all, ask, options);
      ASSERT_TRUE(placement.found()) << name;
      EXPECT_EQ(placement.answer, placement.prefill + 2) << name;
      EXPECT_EQ(choose_decode(all, ask, options, 1).answer, 3U) << name;
      auto lost = all;
      lost[2].available = false;  // group 0 has no decode worker any more
      EXPECT_EQ(choose_placement(lost, ask, options).prefill, 1U) << name;
      EXPECT_EQ(choose_decode(lost, ask, options, 0).answer, kNoWorker) << name;
    }
  }
}

TEST(Policy, ThePairOfTheCheaperGroupIsTaken) {
  auto all = pools(2, 2);
  all[1].group = all[3].group = 1;
  all[0].queued_tokens = 100000;  // the best decode worker is in group 0, and the cost is the sum
  all[3].running = 20;
  EXPECT_EQ(choose_placement(all, request(1000), {}).prefill, 1U);
  all[3].running = 2000000;
  EXPECT_EQ(choose_placement(all, request(1000), {}).prefill, 0U);
}

TEST(Policy, WhatCanBeFetchedCostsItsBytesUnlessComputingIsFaster) {
  auto all = pools(0, 0, 2);
  all[0].fetch_blocks = 200;  // 3200 of 4000 tokens
  for (int session = 0; session < 20; ++session)
    EXPECT_EQ(choose_placement(all, request(4000, std::to_string(session)), {}).answer, 0U);
  all[0].fetch_rate = 10;  // a slow link: the same as nothing
  std::map<WorkerId, int> chosen;
  for (int session = 0; session < 40; ++session)
    ++chosen[choose_placement(all, request(4000, std::to_string(session)), {}).answer];
  EXPECT_EQ(chosen.size(), 2U);
}

TEST(Policy, APrefixThatEverybodySharesIsCopiedBeforeItsWorkerMelts) {
  auto all = pools(0, 0, 4);
  all[1].prefix_blocks = 200;  // 3200 of 4000 tokens
  int most = 0;
  for (int i = 0; i < 40; ++i) {
    const auto placed = choose_placement(all, request(4000, std::to_string(i)), {});
    WorkerSnapshot& chosen = all[placed.answer];
    ++chosen.running;
    chosen.queued_tokens += 4000 - placed.expected_cached;
    chosen.prefix_blocks = 200;
    most = std::max(most, chosen.running);
  }
  EXPECT_LE(most, 20);
  const auto copies = std::count_if(
      all.begin(), all.end(), [](const auto& snapshot) { return snapshot.prefix_blocks > 0; });
  EXPECT_GE(copies, 3);
}

TEST(Policy, NewSessionsGoWhereSessionsWeighLess) {
  auto all = pools(0, 0, 4);
  std::vector<double> placed(4, 0);
  for (int session = 0; session < 400; ++session) {
    auto ask = request(5000 + session % 7 * 3000, "session-" + std::to_string(session));
    const auto chosen = choose_placement(all, ask, {}).answer;
    all[chosen].recent_tokens += ask.prompt_tokens;
  }
  double sum = 0;
  for (const auto& snapshot : all) sum += snapshot.recent_tokens;
  for (const auto& snapshot : all) EXPECT_NEAR(snapshot.recent_tokens / (sum / 4), 1, 0.12);
}

TEST(Policy, WaitsForAPrefixOnlyWhereComputingItAgainEvictsSomething) {
  auto all = pools(0, 0, 2);
  for (WorkerSnapshot& worker : all) {
    worker.capacity_tokens = 1 << 20;
    worker.reusable_tokens = 0;
    worker.prefill_rate = 1000;
  }
  all[0].prefix_blocks = 62;      // all but 8 tokens of 1000
  all[0].queued_tokens = 10'000;  // ten seconds for one of computing
  EXPECT_EQ(choose_placement(all, request(1000), {}).answer, 1U);
  for (WorkerSnapshot& worker : all) worker.reusable_tokens = 2 << 20;
  EXPECT_EQ(choose_placement(all, request(1000), {}).answer, 0U);
}

// Where computing the prompt again costs nobody a thing but work_weight, evict_weight is the price
// in full caches; between, it grows with them: what a queue for a prefix may cost.
TEST(Policy, TheFullerCachesAreTheLongerARequestWaitsForItsPrefix) {
  const auto longest_wait = [](double fullness, int64_t capacity, const PolicyOptions& options) {
    auto all = pools(0, 0, 2);
    const double of = capacity > 0 ? static_cast<double>(capacity) : options.assumed_capacity;
    for (WorkerSnapshot& worker : all) {
      worker.capacity_tokens = capacity;
      worker.reusable_tokens = fullness * of;
      worker.prefill_rate = 1000;
    }
    all[0].prefix_blocks = 62;
    int64_t seconds = 0;
    for (; seconds < 100; ++seconds) {
      all[0].queued_tokens = 1000 * seconds;
      if (choose_placement(all, request(1000), options).answer != 0) break;
    }
    return seconds;
  };
  PolicyOptions assumed;
  assumed.assumed_capacity = 50'000;
  for (const int64_t capacity : {int64_t{1} << 20, int64_t{0}}) {
    for (const PolicyOptions& options : {PolicyOptions(), assumed}) {
      // 992 tokens are held: so many seconds of work, at 1 + work_weight + evict_weight x fullness.
      EXPECT_NEAR(static_cast<double>(longest_wait(0, capacity, options)), 5, 1) << capacity;
      EXPECT_NEAR(static_cast<double>(longest_wait(0.5, capacity, options)), 13, 1) << capacity;
      EXPECT_NEAR(static_cast<double>(longest_wait(1, capacity, options)), 21, 1) << capacity;
      EXPECT_NEAR(static_cast<double>(longest_wait(50, capacity, options)), 21, 1) << capacity;
    }
  }
}

TEST(Policy, WhereCachesAreEmptyOrHalfFullTheHitStillOutweighsAffinity) {
  for (const double reusable : {0.0, 0.5 * (1 << 20)}) {
    auto all = pools(3, 1);
    for (WorkerSnapshot& worker : all) worker.reusable_tokens = reusable;
    const auto ask = request(4000);
    const WorkerId home = choose_placement(all, ask, {}).prefill;
    const WorkerId other = (home + 1) % 3;
    all[other].prefix_blocks = 200;
    EXPECT_EQ(choose_placement(all, ask, {}).prefill, other) << reusable;
    all[other].queued_tokens = 100000;
    EXPECT_EQ(choose_placement(all, ask, {}).prefill, home) << reusable;
  }
}

TEST(Policy, RoundRobinGoesRound) {
  PolicyOptions options;
  options.kind = PolicyKind::kRoundRobin;
  auto all = pools(0, 0, 3);
  auto ask = request(100);
  for (ask.turn = 0; ask.turn < 9; ++ask.turn)
    EXPECT_EQ(choose_placement(all, ask, options).answer, ask.turn % 3);
}

TEST(Policy, RandomIsEvenAndTheSameForTheSameTurn) {
  PolicyOptions options;
  options.kind = PolicyKind::kRandom;
  auto all = pools(0, 0, 4);
  std::map<WorkerId, int> counts;
  auto ask = request(100);
  for (ask.turn = 0; ask.turn < 4000; ++ask.turn) {
    const auto chosen = choose_placement(all, ask, options).answer;
    EXPECT_EQ(chosen, choose_placement(all, ask, options).answer);
    ++counts[chosen];
  }
  for (const auto& [id, count] : counts) {
    EXPECT_GT(count, 850);
    EXPECT_LT(count, 1150);
  }
}

TEST(Policy, PowerOfTwoNeverTakesTheMostLoadedAndComparesFreshLoads) {
  PolicyOptions options;
  options.kind = PolicyKind::kPowerOfTwo;
  auto all = pools(0, 0, 4);
  all[2].running = 9;
  auto ask = request(100);
  for (ask.turn = 0; ask.turn < 200; ++ask.turn)
    EXPECT_NE(choose_placement(all, ask, options).answer, 2U);
  all[2].running = 0;
  for (ask.turn = 0; ask.turn < 400; ++ask.turn)
    ++all[choose_placement(all, ask, options).answer].running;
  for (const auto& snapshot : all) EXPECT_NEAR(snapshot.running, 100, 5);
}

TEST(Policy, CacheFollowsTheLongestPrefixFromItsThresholdOn) {
  PolicyOptions options;
  options.kind = PolicyKind::kCache;
  auto all = pools(0, 0, 3);
  all[1].prefix_blocks = 50;  // 800 of 1000
  all[1].running = 1000;
  EXPECT_EQ(choose_placement(all, request(1000), options).answer, 1U);
  all[1].prefix_blocks = 10;  // 160 of 1000
  EXPECT_NE(choose_placement(all, request(1000), options).answer, 1U);
}

TEST(Policy, AffinityAloneKeepsASessionUntilItsWorkerIsHot) {
  PolicyOptions options;
  options.kind = PolicyKind::kAffinity;
  auto all = pools(0, 0, 4);
  const WorkerId home = choose_placement(all, request(1000), options).answer;
  all[(home + 1) % 4].prefix_blocks = 60;
  EXPECT_EQ(choose_placement(all, request(1000), options).answer, home);
  all[home].running = 5;
  EXPECT_NE(choose_placement(all, request(1000), options).answer, home);
}

TEST(Policy, NamesAreReadBack) {
  for (const std::string& name : policy_names()) EXPECT_EQ(policy_name(*parse_policy(name)), name);
  EXPECT_FALSE(parse_policy("best"));
}

TEST(Policy, HostileNumbersGiveFiniteCosts) {
  auto all = pools(1, 1);
  all[0].prefill_rate = 0;
  all[1].capacity_tokens = 1;
  const auto placement = choose_placement(all, request(2000000000), {});
  EXPECT_TRUE(placement.found());
  EXPECT_TRUE(std::isfinite(placement.seconds));
}

}  // namespace
}  // namespace tandem::router
