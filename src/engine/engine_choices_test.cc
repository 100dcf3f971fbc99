// Several choices of one request, and one request's failure among others.
#include <atomic>
#include <cmath>
#include <set>

#include "engine/engine_fixture.h"

namespace tandem::engine {
namespace {

// Counts the rows that passes compute.
class CountingModel final : public model::Model {
 public:
  CountingModel(std::unique_ptr<model::Model> inner, std::atomic<int>& rows)
      : inner_(std::move(inner)), rows_(rows) {}
  const model::ModelConfig& config() const override { return inner_->config(); }
  ops::PageLayout page_layout(int32_t block) const override { return inner_->page_layout(block); }
  std::vector<model::PageGroup> page_groups() const override { return inner_->page_groups(); }
  model::ModelMemory memory() const override { return inner_->memory(); }
  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                 std::span<float> logits) override {
    rows_ += static_cast<int>(batch.tokens.size());
    for (const auto& sequence : batch.sequences) adapters_.insert(sequence.adapter);
    return inner_->forward(batch, pages, logits);
  }
  int32_t max_rows() const override { return inner_->max_rows(); }
  std::optional<int32_t> find_adapter(std::string_view name) const override {
    if (name == "polite") return 4;
    return std::nullopt;
  }
  std::string numeric_path() const override { return inner_->numeric_path(); }
  std::set<int32_t> adapters_;

 private:
  std::unique_ptr<model::Model> inner_;
  std::atomic<int>& rows_;
};

class EngineChoices : public EngineTest {
 protected:
  std::unique_ptr<model::Model> wrap(std::unique_ptr<model::Model> model) override {
    auto counting = std::make_unique<CountingModel>(std::move(model), rows_);
    counting_ = counting.get();
    return counting;
  }
  void start_noisy(int32_t pages, EngineOptions options = {}, int step_ms = 0) {
    script_.replies.clear();
    script_.noise = 6;
    start(pages, std::move(options), step_ms);
  }
  protocol::GenerateRequest sampled(int32_t n) const {
    auto asked = request("tell me something long and nice>");
    asked.sampling.temperature = 1;
    asked.sampling.seed = 5;
    asked.sampling.n = asked.sampling.best_of = n;
    asked.sampling.max_tokens = 12;
    return asked;
  }
  std::atomic<int> rows_ = 0;
  CountingModel* counting_ = nullptr;
};

TEST_F(EngineChoices, EachChoiceDependsOnItsNumberAlone) {
  start_noisy(64);
  const Collected five = run(sampled(5)).get();
  ASSERT_EQ(five.choices.size(), 5U);
  std::set<std::string> texts;
  for (const auto& [index, choice] : five.choices) {
    ASSERT_TRUE(choice.finish);
    EXPECT_EQ(choice.finish->usage.prompt_tokens, 32);
    texts.insert(::testing::PrintToString(choice.tokens));
  }
  EXPECT_EQ(texts.size(), 5U) << "they differ";
  const Collected two = run(sampled(2)).get();
  for (const int32_t index : {0, 1})
    EXPECT_EQ(two.choices.at(index).tokens, five.choices.at(index).tokens);
  wait_for_used(0);
}

TEST_F(EngineChoices, ThePromptIsComputedOnce) {
  start_noisy(64);
  (void)run(sampled(1)).get();
  const int one = rows_.exchange(0);
  auto other = sampled(6);
  other.context.salt = "other";  // nothing of the first is reused
  const Collected six = run(other).get();
  int generated = 0;
  for (const auto& [index, choice] : six.choices)
    generated += choice.finish->usage.completion_tokens;
  // 24 of 32 prompt tokens are whole blocks before the last token: the others compute 8 rows each.
  EXPECT_LE(rows_, one + generated + 5 * 8);
}

TEST_F(EngineChoices, BestOfDeliversTheLikeliestInOrder) {
  start_noisy(64);
  auto all = sampled(6);
  all.sampling.logprobs = 0;
  const Collected every = run(all).get();
  std::vector<std::pair<double, std::string>> ranked;
  for (const auto& [index, choice] : every.choices) {
    double sum = 0;
    for (const auto& logprobs : choice.logprobs)
      sum += static_cast<double>(logprobs.chosen.logprob);
    if (choice.finish->stop_token) continue;  // its own logprob counts too and is not told
    ranked.emplace_back(sum / static_cast<double>(choice.logprobs.size()), choice.text);
  }
  ASSERT_EQ(ranked.size(), 6U) << "the seed makes all six long";
  std::ranges::sort(ranked, std::greater<>());
  auto best = all;
  best.sampling.n = 2;
  best.sampling.logprobs = {};
  const Collected two = run(best).get();
  ASSERT_EQ(two.choices.size(), 2U);
  EXPECT_EQ(two.choices.at(0).text, ranked[0].second);
  EXPECT_EQ(two.choices.at(1).text, ranked[1].second);
  EXPECT_TRUE(two.choices.at(0).logprobs.empty()) << "nobody asked for them";
  const auto tokens = [](const Collected& got) {
    int32_t sum = 0;
    for (const auto& [index, choice] : got.choices)
      sum += choice.finish->usage.completion_tokens + choice.finish->discarded_tokens;
    return sum;
  };
  EXPECT_EQ(tokens(two), tokens(every)) << "what nobody gets was generated all the same";
  EXPECT_EQ(two.choices.at(0).finish->discarded_tokens, 0) << "told once";
}

// A client may give every request one id, and several prompts have that of their request.
TEST_F(EngineChoices, WithoutASeedOrAHandoffNoTwoRunsAreAlike) {
  start_noisy(64);
  std::set<std::string> texts;
  for (int i = 0; i < 4; ++i) {
    auto asked = sampled(1);
    asked.context.request_id = "always-the-same";
    asked.sampling.seed.reset();
    texts.insert(::testing::PrintToString(run(asked).get().choices.at(0).tokens));
  }
  EXPECT_EQ(texts.size(), 4U);
  texts.clear();
  for (const char* handoff : {"h1", "h1", "h2"}) {
    auto asked = sampled(1);
    asked.sampling.seed.reset();
    asked.handoff.handoff_id = handoff;
    texts.insert(::testing::PrintToString(run(asked).get().choices.at(0).tokens));
  }
  EXPECT_EQ(texts.size(), 2U) << "both legs of a handoff draw the same numbers";
}

// vllm#6646: very many choices neither hang nor keep others waiting.
TEST_F(EngineChoices, ManyChoicesLeaveRoomForOthers) {
  start_noisy(64, EngineOptions{.max_sequences = 8});
  auto many = sampled(protocol::kMaxChoices);
  auto future = run(many);
  auto other = request("me too>");
  other.sampling.max_tokens = 3;
  const Collected quick = run(other).get();
  EXPECT_TRUE(quick.finish);
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
      << "the other one did not wait for all of them";
  EXPECT_EQ(future.get().choices.size(), 128U);
  wait_for_used(0);
}

TEST_F(EngineChoices, AbortEndsAllChoices) {
  start_noisy(64, {}, 10);
  auto asked = sampled(4);
  asked.sampling.max_tokens = 200;
  std::atomic<int> events = 0;
  auto id = engine_->generate(asked, [&](const protocol::TokenEvent&) { ++events; });
  ASSERT_TRUE(id);
  for (int i = 0; i < 500 && engine_->stats().running < 4; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(engine_->stats().running, 4);
  engine_->abort(*id);
  wait_for_used(0);
  const int seen = events;
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(events, seen);
}

// What is sampled follows from the tokens alone: counts for penalties come through preemption,
// passes in flight and chunks.
TEST_F(EngineChoices, PenaltiesDoNotDependOnHowASequenceWasRun) {
  std::vector<std::string> first;
  for (const int in_flight : {1, 2}) {
    for (const int32_t pages : {64, 14}) {
      start_noisy(
          pages, EngineOptions{.prefill_chunk = 7, .max_sequences = 6, .max_in_flight = in_flight});
      std::vector<std::future<Collected>> futures;
      for (int i = 0; i < 10; ++i) {
        auto asked = sampled(2);
        asked.sampling.seed = static_cast<uint64_t>(i);
        asked.sampling.frequency_penalty = 1;
        asked.sampling.repetition_penalty = 1.5F;
        asked.sampling.max_tokens = 30;
        futures.push_back(run(asked));
      }
      std::vector<std::string> got;
      got.reserve(futures.size());
      for (auto& future : futures) got.push_back(describe(future.get()));
      if (first.empty()) first = got;
      EXPECT_EQ(got, first) << in_flight << " in flight, " << pages << " pages";
      wait_for_used(0);
    }
  }
}

TEST_F(EngineChoices, RefusesWhatIsOutOfBounds) {
  start_noisy(64);
  const auto refused = [&](auto&& change, const char* pointer) {
    auto asked = sampled(1);
    change(asked.sampling);
    const auto id = engine_->generate(asked, [](const protocol::TokenEvent&) {});
    ASSERT_FALSE(id) << pointer;
    EXPECT_EQ(id.error().status, 400);
    EXPECT_EQ(id.error().pointer, pointer);
  };
  refused([](auto& s) { s.n = s.best_of = 129; }, "/n");
  refused([](auto& s) { s.n = 0; }, "/n");
  refused([](auto& s) { s.n = 3, s.best_of = 2; }, "/best_of");
  refused([](auto& s) { s.logit_bias = {{99999999, -100}}; }, "/logit_bias");  // vllm#16529
  refused([](auto& s) { s.stop_token_ids = {257}; }, "/stop_token_ids");
  refused([](auto& s) { s.logprobs = 21; }, "/logprobs");
  // The logprobs of a long prompt, with every choice.
  auto scored = sampled(1);
  scored.prompt.assign(500, 65);
  scored.sampling.prompt_logprobs = 20;
  scored.sampling.max_tokens = 1;
  EXPECT_TRUE(run(scored).get().prompt);
  scored.sampling.n = scored.sampling.best_of = 128;
  const Collected too_many = run(scored).get();
  ASSERT_TRUE(too_many.error);
  EXPECT_EQ(too_many.error->status, 400);
  EXPECT_EQ(too_many.error->pointer, "/logprobs");
  auto asked = sampled(1);
  asked.adapter = "rude";
  const auto id = engine_->generate(asked, [](const protocol::TokenEvent&) {});
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().status, 404);
  EXPECT_EQ(id.error().code, "adapter_not_found");
}

TEST_F(EngineChoices, AnAdaptersBlocksAreItsOwn) {
  start_noisy(64);
  (void)run(sampled(1)).get();
  auto polite = sampled(1);
  polite.adapter = "polite";
  EXPECT_EQ(run(polite).get().finish->usage.cached_tokens, 0);
  EXPECT_GT(run(polite).get().finish->usage.cached_tokens, 0);
  EXPECT_EQ(counting_->adapters_, (std::set<int32_t>{-1, 4}));
}

// vllm#13035, #22881, #21292.
TEST_F(EngineChoices, LogitsThatAreNotNumbersFailTheirRequestOnly) {
  script_.replies = {{"sick", "it goes wrong", {}, {}, 4}, {"", "all is well"}};
  start(64);
  std::vector<std::future<Collected>> well;
  well.reserve(4);
  for (int i = 0; i < 4; ++i) well.push_back(run(request("hello " + std::to_string(i) + ">")));
  auto several = request("sick>");
  several.sampling.n = several.sampling.best_of = 3;
  const Collected failed = run(several).get();
  ASSERT_TRUE(failed.error);
  EXPECT_EQ(failed.error->status, 500);
  EXPECT_EQ(failed.error->code, "non_finite_logits");
  for (auto& future : well) EXPECT_EQ(future.get().text, "all is well");
  EXPECT_NE(metrics_.render().find("tandem_non_finite_outputs_total 1"), std::string::npos);
  wait_for_used(0);
}

TEST_F(EngineChoices, StopTokensEndAndMinTokensHoldThemBack) {
  script_.replies = {{"", "abcabcabc"}};
  start(32);
  auto asked = request("go>");
  const int32_t c = tokenizer_->encode("c").front();
  asked.sampling.stop_token_ids = {c};
  Collected got = run(asked).get();
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.finish->stop_token, c);
  EXPECT_EQ(got.finish->reason, protocol::FinishReason::kStop);
  // The script wants "c" third and is denied it: what comes then is no longer its text.
  asked.sampling.min_tokens = 5;
  asked.sampling.max_tokens = 8;
  got = run(asked).get();
  EXPECT_GE(got.finish->usage.completion_tokens, 5);
  auto end = request("go>");
  end.sampling.ignore_eos = true;
  end.sampling.max_tokens = 20;
  got = run(end).get();
  EXPECT_EQ(got.finish->reason, protocol::FinishReason::kLength);
  EXPECT_EQ(got.finish->usage.completion_tokens, 20);
  EXPECT_EQ(got.text, "abcabcabc") << "the ends of turn it went over have no text";
}

}  // namespace
}  // namespace tandem::engine
