#include "sim/router_simulation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/block_cache.h"
#include "sim/event_prefixes.h"

namespace tandem::sim {
namespace {

RouterSetup small_setup() {
  RouterSetup setup;
  setup.unified = 4;
  setup.engine.kv_tokens = 400000;
  setup.sessions_at_once = 12;
  return setup;
}

// Sessions whose prompts grow by about 1,000 tokens a turn, in the form of the agent traces.
std::string session_lines(int sessions, int turns) {
  std::string text;
  for (int s = 0; s < sessions; ++s) {
    text += R"({"id":"t)" + std::to_string(s) + R"(","block_size":64,"requests":[)";
    for (int t = 0; t < turns; ++t) {
      const int input = 8000 + 512 * (s % 5) + 1024 * t;
      text += (t == 0 ? "" : ",") + std::string(R"({"t":0,"type":"n","in":)") +
              std::to_string(input) + R"(,"out":100,"blocks":[[1,)" + std::to_string(input / 64) +
              R"(]],"think_time":)" + std::to_string(1 + (s + t) % 4) + "}";
    }
    text += "]}\n";
  }
  return text;
}

std::string mooncake_lines(int requests) {
  std::string text;
  Random random(7);
  for (int i = 0; i < requests; ++i) {
    const auto topic = random.pick(20);
    text += R"({"timestamp":)" + std::to_string(i * 100) +
            R"(,"input_length":5200,"output_length":50,"hash_ids":[0)";
    for (int64_t b = 0; b < 8; ++b) text += "," + std::to_string(1 + topic * 8 + b);
    text += "," + std::to_string(100000 + i * 2) + "," + std::to_string(100001 + i * 2) + "]}\n";
  }
  return text;
}

RouterOutcome outcome_of(const std::string& text, const RouterSetup& setup,
                         const std::string& policy) {
  const auto traffic = read_traffic(text, {});
  EXPECT_TRUE(traffic);
  auto outcome = simulate_router(*traffic, setup, *parse_router_policy(policy));
  EXPECT_TRUE(outcome);
  return *outcome;
}

TEST(Traffic, ReadsTheThreeFormsAndNamesTheLineThatIsBad) {
  const auto mooncake = read_traffic(mooncake_lines(3), {});
  ASSERT_TRUE(mooncake);
  EXPECT_EQ(mooncake->conversations.size(), 3U);
  EXPECT_EQ(chain_of(*mooncake, mooncake->conversations[0], mooncake->conversations[0].requests[0])
                .size(),
            10U)
      << "whole blocks only";
  const auto azure = read_traffic(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n"
      "2023-11-16 18:17:05.97,600,8\n",
      {});
  ASSERT_TRUE(azure);
  EXPECT_NEAR(azure->conversations[1].requests[0].at, 2, 1e-6);
  EXPECT_FALSE(read_traffic("hello\n", {}));
  const auto bad = read_traffic(mooncake_lines(2) + R"({"hash_ids":[1]})", {});
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("line 3"), std::string::npos);
  EXPECT_FALSE(read_traffic(R"({"requests":[{"in":5,"out":1,"blocks":[[9,2]]}]})", {}));
}

TEST(Traffic, ATurnsChainContinuesTheOneBeforeAndHoldsItsAnswer) {
  const auto traffic = read_traffic(session_lines(1, 3), {});
  ASSERT_TRUE(traffic);
  const Conversation& session = traffic->conversations[0];
  const auto first = chain_of(*traffic, session, session.requests[0]);
  const auto second = chain_of(*traffic, session, session.requests[1]);
  ASSERT_GT(second.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  auto longer = *traffic;
  longer.conversations[0].requests[0].output = 700;
  EXPECT_EQ(chain_after(longer, longer.conversations[0], 0).size(), first.size() + 1);
}

TEST(BlockCache, EvictsTheLeastRecentlyUsedButNothingThatIsPinned) {
  BlockCache cache(4);
  const std::vector<uint64_t> a{1, 2};
  const std::vector<uint64_t> b{3, 4};
  const std::vector<uint64_t> c{5, 6};
  cache.insert(a);
  cache.insert(b);
  cache.pin(a);
  cache.insert(c);
  EXPECT_EQ(cache.match(a), 2U);
  EXPECT_EQ(cache.match(b), 0U);
  EXPECT_EQ(cache.match(c), 2U);
  EXPECT_FALSE(cache.fits(3));
  cache.reserve(2);
  EXPECT_EQ(cache.match(c), 0U);
  cache.unpin(a);
  cache.release(2);
  EXPECT_TRUE(cache.fits(4));
}

TEST(EventPrefixes, KnowsEachWorkersLeadingBlocksByEventsAndForAWhileByWhatWasSent) {
  EventPrefixes known(3);
  BlockCache first(8);
  BlockCache second(2);
  const std::vector<uint64_t> chain{0x100000001, 2, 3};
  const std::vector<uint64_t> other{4, 5};
  const TimePoint start{};
  const std::vector<uint64_t> begin{0x100000001, 2};
  first.insert(begin);
  second.insert(begin);
  known.told(0, first.take_changes(), start);
  known.told(1, second.take_changes(), start);
  const router::PromptKeys keys = known.keys_of(chain);
  const auto expected = known.expect(2, keys, 0, start);
  std::vector<int32_t> held(3, -1);
  known.match(keys, held, start);
  EXPECT_EQ(held, (std::vector<int32_t>{2, 2, 3}));
  known.settle(expected, std::chrono::seconds(2), start);
  // Others took their place; what was expected was never told.
  second.insert(other);
  first.insert(chain);
  known.told(0, first.take_changes(), start);
  known.told(1, second.take_changes(), start);
  known.match(keys, held, start + std::chrono::seconds(3));
  EXPECT_EQ(held, (std::vector<int32_t>{3, 0, 0}));
  known.match(known.keys_of(other), held, start + std::chrono::seconds(3));
  EXPECT_EQ(held, (std::vector<int32_t>{0, 2, 0}));
}

TEST(RouterSimulation, SeedsAreOtherRunsOfTheSameTrafficAndAreToldTogether) {
  const auto traffic = read_traffic(mooncake_lines(200), {});
  RouterSetup setup = small_setup();
  setup.jitter = std::chrono::milliseconds(20);
  std::vector<RouterOutcome> runs;
  for (setup.seed = 0; setup.seed < 3; ++setup.seed)
    runs.push_back(*simulate_router(*traffic, setup, *parse_router_policy("auto")));
  setup.seed = 1;
  const auto again = simulate_router(*traffic, setup, *parse_router_policy("auto"));
  EXPECT_EQ(again->first_token, runs[1].first_token);
  EXPECT_NE(runs[0].first_token, runs[1].first_token);
  EXPECT_EQ(runs[0].input_tokens, runs[1].input_tokens);
  const RouterOutcome all = joined(runs);
  EXPECT_EQ(all.first_token.size(), 600U);
  EXPECT_TRUE(std::is_sorted(all.first_token.begin(), all.first_token.end()));
  EXPECT_EQ(all.cached_tokens,
            runs[0].cached_tokens + runs[1].cached_tokens + runs[2].cached_tokens);
  EXPECT_NEAR(
      all.mean_first_token(),
      (runs[0].mean_first_token() + runs[1].mean_first_token() + runs[2].mean_first_token()) / 3,
      1e-9);
}

TEST(ServingWorker, OnePromptTakesItsTimeAndItsStepsAndAHitOnlyTheRest) {
  EventLoop loop;
  EngineSpec spec;
  spec.prefill_rate = 1000;
  spec.step_seconds = 0.1;
  ServingWorker worker(loop, spec, 100);
  double first = 0;
  double end = 0;
  const auto job = [&] {
    auto made = std::make_shared<ServingWorker::Job>();
    for (uint64_t i = 1; i <= 10; ++i) made->chain.push_back(i);
    made->chain_after = made->chain;
    made->input = 1000;
    made->output = 11;
    made->computed = [&worker, made](int32_t) { worker.decode(made); };
    made->first_token = [&] { first = to_seconds(loop.now().time_since_epoch()); };
    made->finished = [&] { end = to_seconds(loop.now().time_since_epoch()); };
    return made;
  };
  worker.prefill(job());
  while (loop.step(TimePoint(std::chrono::seconds(100)))) {
  }
  EXPECT_NEAR(first, 1.1, 1e-3);
  EXPECT_NEAR(end, 2.1, 1e-3);
  const TimePoint again = loop.now();
  worker.prefill(job());
  while (loop.step(TimePoint(std::chrono::seconds(1000)))) {
  }
  EXPECT_NEAR(first - to_seconds(again.time_since_epoch()), 0.101, 1e-3) << "all but one token";
}

TEST(ServingWorker, SequencesShareStepsAndPromptsTakeTurnsWithThem) {
  EngineSpec spec;
  spec.prefill_rate = 1000;
  spec.step_seconds = 0.1;
  spec.crowding = 0.5;
  spec.chunk_tokens = 100;
  for (const bool shared : {false, true}) {
    EventLoop loop;
    spec.shared_device = shared;
    ServingWorker worker(loop, spec, 100);
    std::vector<double> ends;
    for (uint64_t n = 0; n < 2; ++n) {
      auto made = std::make_shared<ServingWorker::Job>();
      made->input = 1;
      made->output = 10;
      made->computed = [&worker, made](int32_t) { worker.decode(made); };
      made->finished = [&] { ends.push_back(to_seconds(loop.now().time_since_epoch())); };
      worker.prefill(made);
    }
    auto prompt = std::make_shared<ServingWorker::Job>();
    prompt->input = 10000;
    worker.prefill(prompt);
    while (loop.step(TimePoint(std::chrono::seconds(100)))) {
    }
    ASSERT_EQ(ends.size(), 2U);
    // A step of two takes 0.15 s; on a shared device a chunk of 0.1 s goes before each.
    EXPECT_NEAR(ends[0], shared ? 2.5 : 1.5, 0.06);
  }
}

TEST(CacheAware, FollowsTextUntilLoadsAreOutOfBalance) {
  CacheAware aware({}, 3, 100);
  const std::vector<uint64_t> chain{1, 2, 3, 4};
  std::vector<int32_t> running{0, 0, 0};
  const TimePoint now{std::chrono::seconds(1)};
  const size_t home = aware.choose(chain, 400, running, now);
  EXPECT_EQ(aware.choose(chain, 400, running, now), home);
  running[home] = 64;
  EXPECT_EQ(aware.choose(chain, 400, running, now), home) << "64 more is not out of balance yet";
  running[home] = 65;
  EXPECT_NE(aware.choose(chain, 400, running, now), home);
  const std::vector<uint64_t> other{9, 8};
  running[home] = 0;
  EXPECT_NE(aware.choose(other, 200, running, now), home) << "the smallest tree";
  EXPECT_NE(aware.choose(chain, 4000, running, now), home) << "a tenth of the text is too little";
}

TEST(RouterSimulation, IsTheSameEveryTimeAndEveryRequestEnds) {
  const std::string text = mooncake_lines(300);
  RouterSetup pairs = small_setup();
  pairs.unified = 0;
  pairs.prefill = pairs.decode = 4;
  pairs.groups = 2;
  for (const RouterPolicy& policy : all_router_policies()) {
    for (const RouterSetup& setup : {small_setup(), pairs}) {
      const auto one = outcome_of(text, setup, policy.name);
      const auto two = outcome_of(text, setup, policy.name);
      EXPECT_EQ(one.unfinished, 0) << policy.name;
      EXPECT_EQ(one.first_token.size(), 300U);
      EXPECT_EQ(one.first_token, two.first_token) << policy.name;
      EXPECT_EQ(one.cached_tokens, two.cached_tokens);
      EXPECT_LE(one.cached_tokens, one.ideal_tokens);
    }
  }
}

TEST(RouterSimulation, AgentsStayOnTheirCachesAndTheLoadIsEven) {
  const std::string text = session_lines(40, 12);
  const RouterSetup setup = small_setup();
  const auto with = outcome_of(text, setup, "auto");
  const auto without = outcome_of(text, setup, "random");
  EXPECT_EQ(with.unfinished, 0);
  EXPECT_GT(with.share_of_ideal(), 0.95);
  EXPECT_LT(with.load_ratio, 1.7);
  EXPECT_LT(without.share_of_ideal(), with.share_of_ideal() - 0.1);
  EXPECT_LT(quantile(with.first_token, 0.9), quantile(without.first_token, 0.9));
}

TEST(RouterSimulation, OverloadIsShedAndWhatIsServedIsServedInTime) {
  const std::string text = mooncake_lines(400);
  RouterSetup setup = small_setup();
  setup.unified = 1;
  setup.capacity = {4, 0};
  setup.admission.max_wait = std::chrono::seconds(5);
  const auto outcome = outcome_of(text, setup, "auto");
  EXPECT_GT(outcome.shed, 50);
  EXPECT_EQ(outcome.unfinished, 0);
  EXPECT_LE(quantile(outcome.waits, 1), 5.001);
}

TEST(RouterSimulation, AFleetWithoutAPairInEveryGroupIsRefused) {
  const auto traffic = read_traffic(mooncake_lines(1), {});
  RouterSetup setup;
  setup.unified = 0;
  EXPECT_FALSE(simulate_router(*traffic, setup, {}));
  setup.unified = kMostSimulatedWorkers + 1;
  EXPECT_FALSE(simulate_router(*traffic, setup, {}));
}

}  // namespace
}  // namespace tandem::sim
