// What is read off the prompt: logprobs of its tokens, embeddings.
#include <cmath>

#include "engine/engine_fixture.h"

namespace tandem::engine {
namespace {

class EngineScores : public EngineTest {
 protected:
  void start_noisy(int32_t pages, EngineOptions options = {}) {
    script_.replies = {{"sick", "", {}, {}, 0}};
    script_.noise = 6;
    start(pages, std::move(options));
  }
  protocol::GenerateRequest scored(const std::string& prompt, int32_t top = 2) const {
    auto asked = request(prompt);
    asked.sampling.prompt_logprobs = top;
    asked.sampling.score_only = true;
    return asked;
  }
  Result<Embedding> embed(const std::string& text, protocol::Pooling pooling) {
    protocol::EmbedRequest asked;
    asked.prompt = tokenizer_->encode(text);
    asked.pooling = pooling;
    std::promise<Result<Embedding>> promise;
    auto id =
        engine_->embed(asked, [&](Result<Embedding> got) { promise.set_value(std::move(got)); });
    if (!id) return tl::unexpected(id.error());
    return promise.get_future().get();
  }
};

// vllm#6521: echo, logprobs and max_tokens 0.
TEST_F(EngineScores, APromptsLogprobsAreThoseOfGeneratingIt) {
  start_noisy(64);
  auto generated = request("a beginning>");
  generated.sampling.logprobs = 2;
  generated.sampling.max_tokens = 20;
  generated.sampling.ignore_eos = true;
  const Collected said = run(generated).get();
  ASSERT_EQ(said.choices.at(0).logprobs.size(), 20U);
  auto asked = scored("");
  asked.prompt = generated.prompt;
  asked.prompt.insert(asked.prompt.end(), said.choices.at(0).tokens.begin(),
                      said.choices.at(0).tokens.end());
  const Collected got = run(asked).get();
  ASSERT_TRUE(got.prompt);
  EXPECT_EQ(got.prompt->tokens, asked.prompt);
  ASSERT_EQ(got.prompt->logprobs.size(), asked.prompt.size());
  EXPECT_FALSE(got.prompt->logprobs.front()) << "the first token follows nothing";
  for (size_t i = 0; i < 20; ++i) {
    const auto& there = said.choices.at(0).logprobs[i];
    const auto& here = got.prompt->logprobs[generated.prompt.size() + i];
    ASSERT_TRUE(here);
    EXPECT_EQ(here->chosen.token, there.chosen.token);
    EXPECT_EQ(here->chosen.logprob, there.chosen.logprob);
    ASSERT_EQ(here->top.size(), 2U);
    EXPECT_EQ(here->top[1].logprob, there.top[1].logprob);
  }
  EXPECT_EQ(got.finish->reason, protocol::FinishReason::kLength);
  EXPECT_EQ(got.finish->usage.completion_tokens, 0);
  EXPECT_EQ(got.text, "");
  wait_for_used(0);
}

TEST_F(EngineScores, HowAPromptIsCutIntoPassesLeavesNoTrace) {
  const std::string prompt(90, 'q');
  std::string first;
  for (const int32_t chunk : {64, 1, 7, 16}) {
    for (const int32_t in_flight : {1, 2}) {
      start_noisy(64, EngineOptions{.prefill_chunk = chunk, .max_in_flight = in_flight});
      (void)run(request(prompt.substr(0, 50))).get();  // a cached prefix changes nothing
      const std::string got = describe(run(scored(prompt)).get());
      if (first.empty()) first = got;
      EXPECT_EQ(got, first) << chunk << " rows, " << in_flight << " in flight";
    }
  }
}

TEST_F(EngineScores, PreemptedPromptsAreToldOnce) {
  start_noisy(14, EngineOptions{.prefill_chunk = 7, .max_sequences = 6});
  std::vector<std::future<Collected>> futures;
  std::vector<protocol::GenerateRequest> asked;
  for (int i = 0; i < 12; ++i) {
    asked.push_back(scored("number " + std::to_string(i) + " of many prompts here>"));
    asked.back().sampling.score_only = i % 2 == 0;
    asked.back().sampling.max_tokens = 20;
    asked.back().sampling.ignore_eos = true;
    futures.push_back(run(asked.back()));
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    const Collected got = futures[i].get();
    ASSERT_TRUE(got.prompt);
    EXPECT_EQ(got.prompt->logprobs.size(), asked[i].prompt.size());
    EXPECT_EQ(got.finish->usage.completion_tokens, i % 2 == 0 ? 0 : 20);
    EXPECT_EQ(describe(run(asked[i]).get()), describe(got)) << "as when it has the engine alone";
  }
  wait_for_used(0);
}

TEST_F(EngineScores, SmallCases) {
  start_noisy(16);
  Collected got = run(scored("x")).get();
  ASSERT_TRUE(got.prompt);
  EXPECT_EQ(got.prompt->logprobs.size(), 1U);
  EXPECT_FALSE(got.prompt->logprobs[0]);
  auto nothing = request("x>");
  nothing.sampling.score_only = true;
  got = run(nothing).get();
  EXPECT_FALSE(got.prompt) << "nobody asked";
  EXPECT_EQ(got.finish->usage.completion_tokens, 0);
  EXPECT_EQ(got.finish->usage.prompt_tokens, 2);
  auto both = request("two>");
  both.sampling.prompt_logprobs = 0;
  both.sampling.n = both.sampling.best_of = 2;
  both.sampling.max_tokens = 2;
  got = run(both).get();
  ASSERT_TRUE(got.prompt) << "once for all choices";
  EXPECT_EQ(got.choices.size(), 2U);
  got = run(scored("I am sick>then")).get();
  ASSERT_TRUE(got.error) << "one row of the prompt is not numbers";
  EXPECT_EQ(got.error->code, "non_finite_logits");
  auto full = scored(std::string(128, 'f'));
  EXPECT_FALSE(run(full).get().error) << "it needs no room for an answer";
  wait_for_used(0);
}

TEST_F(EngineScores, AnEmbeddingIsTheNormalizedMeanOrLastHiddenState) {
  const std::string text = "a text of more than one block, to be embedded";
  for (const int32_t chunk : {64, 5, 1}) {
    start_noisy(64, EngineOptions{.prefill_chunk = chunk});
    (void)run(request(text)).get();  // cached blocks lack hidden states
    const auto tokens = tokenizer_->encode(text);
    std::vector<double> mean(8);
    std::vector<double> last(8);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int32_t k = 0; k < 8; ++k) {
        const auto at = static_cast<size_t>(k);
        last[at] = static_cast<double>(scripted_hidden(tokens[i], static_cast<int32_t>(i), k));
        mean[at] += last[at];
      }
    }
    const auto expect = [&](const Result<Embedding>& got, const std::vector<double>& wanted) {
      ASSERT_TRUE(got);
      double norm = 0;
      for (const double x : wanted) norm += x * x;
      ASSERT_EQ(got->values.size(), wanted.size());
      for (size_t k = 0; k < wanted.size(); ++k)
        EXPECT_NEAR(got->values[k], wanted[k] / std::sqrt(norm), 1e-6);
      EXPECT_EQ(got->usage.prompt_tokens, static_cast<int32_t>(tokens.size()));
    };
    expect(embed(text, protocol::Pooling::kMean), mean);
    const auto by_last = embed(text, protocol::Pooling::kLast);
    expect(by_last, last);
    EXPECT_EQ(by_last->usage.cached_tokens, 40);
    wait_for_used(0);
  }
}

// vllm#19661.
TEST_F(EngineScores, AnEmbeddingThatIsNotNumbersIsAnError) {
  start_noisy(64);
  for (const auto pooling : {protocol::Pooling::kMean, protocol::Pooling::kLast}) {
    const auto got = embed("a sick text", pooling);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().status, 500);
    EXPECT_EQ(got.error().code, "non_finite_logits");
  }
  EXPECT_NE(metrics_.render().find("tandem_non_finite_outputs_total 2"), std::string::npos);
  EXPECT_TRUE(embed("a healthy one", protocol::Pooling::kMean));
  EXPECT_EQ(embed("", protocol::Pooling::kMean).error().status, 400);
  wait_for_used(0);
}

}  // namespace
}  // namespace tandem::engine
