// A pair answers what one worker answers, whatever the parameters.
#include "worker/handoff_node.h"

namespace tandem::worker {
namespace {

using protocol::SamplingParams;

// Values for each parameter; cases are all pairs of changes, on top of a base that samples.
using Change = void (*)(SamplingParams&);
constexpr Change kChanges[] = {
    [](SamplingParams& /*p*/) {},
    [](SamplingParams& p) { p.temperature = 0; },
    [](SamplingParams& p) { p.top_k = 20, p.top_p = 0.9F; },
    [](SamplingParams& p) { p.min_p = 0.1F; },
    [](SamplingParams& p) { p.typical_p = 0.7F; },
    [](SamplingParams& p) { p.presence_penalty = 1.5F, p.frequency_penalty = 0.5F; },
    [](SamplingParams& p) { p.repetition_penalty = 1.4F; },
    [](SamplingParams& p) { p.logit_bias = {{5, 4.0F}, {9, -100.0F}, {256, 3.0F}}; },
    [](SamplingParams& p) { p.min_tokens = 9, p.logit_bias = {{256, 8.0F}}; },
    [](SamplingParams& p) { p.stop_token_ids = {3, 30, 60, 90, 120, 150}, p.include_stop = true; },
    [](SamplingParams& p) { p.logprobs = 4; },
    [](SamplingParams& p) { p.n = p.best_of = 3; },
    [](SamplingParams& p) { p.best_of = p.n + 3; },
    [](SamplingParams& p) { p.ignore_eos = true; },
    [](SamplingParams& p) { p.max_tokens = 1; },
    [](SamplingParams& p) { p.stop = {"e", "t"}; },
};

TEST(HandoffParity, APairAnswersWhatOneWorkerAnswers) {
  const engine::Script script{.noise = 5};
  const std::vector<int32_t> windows = {};
  Node prefill("pp", 128, 0, {}, windows, script);
  Node decode("pd", 128, 0, {}, windows, script);
  Node alone("pa", 128, 0, {}, windows, script);
  int cases = 0;
  for (const Change first : kChanges) {
    for (const Change second : kChanges) {
      const std::string id = "h" + std::to_string(++cases);
      auto asked = alone.request("the prompt of this test>", id);
      SamplingParams& params = asked.sampling;
      params.temperature = 1;
      params.seed = static_cast<uint64_t>(cases);
      params.max_tokens = 16;
      first(params);
      second(params);
      params.best_of = std::max(params.best_of, params.n);
      auto promise = std::make_shared<std::promise<Collected>>();
      auto future = promise->get_future();
      ASSERT_TRUE(alone.engine->generate(asked, collect_into(std::make_shared<Collected>(), promise,
                                                             static_cast<size_t>(params.n))));
      const std::string wanted = describe(future.get());
      auto report = prefill.prefill(asked);
      ASSERT_EQ(describe(decode.decode(asked, prefill).get()), wanted) << "case " << cases;
      ASSERT_TRUE(report.get());
    }
  }
  EXPECT_EQ(cases, 256);
  prefill.expect_empty();
  decode.expect_empty();
}

TEST(HandoffParity, OtherAdaptersOrPromptsThanTheOfferAreRefused) {
  Node prefill("pp", 64, 0);
  Node decode("pd", 64, 0);
  auto asked = decode.request("fact-1 for two>", "h1");
  auto report = prefill.prefill(asked);
  asked.adapter = "polite";
  const Collected got = decode.decode(asked, prefill).get();
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, "handoff_protocol");
  decode.expect_empty();
  asked.adapter.clear();
  EXPECT_EQ(decode.decode(asked, prefill, 2).get().text, "it is fact-1!");
  EXPECT_TRUE(report.get());
}

TEST(HandoffParity, LogitsThatAreNotNumbersAreAnErrorOnEitherSide) {
  for (const int32_t at : {0, 2}) {  // the first token is the prefill worker's
    const engine::Script script{.replies = {{"sick", "it goes wrong", {}, {}, at}}};
    Node prefill("pp", 64, 0, {}, {}, script);
    Node decode("pd", 64, 0, {}, {}, script);
    auto asked = decode.request("I am sick>", "h1");
    asked.sampling.n = asked.sampling.best_of = 2;
    // Decode has dialed by then: after a prefill leg that failed there is nobody to tell it.
    auto answer = decode.decode(asked, prefill);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    auto report = prefill.prefill(asked);
    const Collected got = answer.get();
    ASSERT_TRUE(got.error);
    EXPECT_EQ(got.error->status, 500);
    EXPECT_EQ(got.error->code, "non_finite_logits");
    EXPECT_EQ(report.get().has_value(), at > 0);
    prefill.expect_empty();
    decode.expect_empty();
  }
}

TEST(HandoffParity, LogprobsOfAPromptAreNotForAPair) {
  Node prefill("pp", 64, 0);
  auto asked = prefill.request("fact-1>", "h1");
  asked.sampling.prompt_logprobs = 1;
  const auto report = prefill.prefill(asked).get();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().status, 400);
}

}  // namespace
}  // namespace tandem::worker
