// Answers that follow a grammar, through the whole engine.
#include "engine/engine_fixture.h"

namespace tandem::engine {
namespace {

using protocol::FinishReason;
using protocol::GrammarKind;
using protocol::GrammarSpec;

class EngineGrammarTest : public EngineTest {
 protected:
  EngineGrammarTest() { script_.noise = 90; }  // what no reply fits is chosen by noise

  Collected constrained(GrammarSpec spec, int32_t n = 1, uint64_t seed = 1) {
    auto asked = request("anything>");
    asked.grammar = std::move(spec);
    asked.sampling.temperature = 30;
    asked.sampling.seed = seed;
    asked.sampling.n = asked.sampling.best_of = n;
    return run(std::move(asked)).get();
  }
};

TEST_F(EngineGrammarTest, TheAnswerIsWhatTheGrammarAllows) {
  start(64);
  const auto got = constrained({.kind = GrammarKind::kRegex, .text = "(red|green)-[0-9]{3}"});
  ASSERT_FALSE(got.error) << got.error->message;
  ASSERT_TRUE(got.finish);
  EXPECT_EQ(got.finish->reason, FinishReason::kStop);
  EXPECT_TRUE(got.text.starts_with("red-") || got.text.starts_with("green-")) << got.text;
  EXPECT_EQ(got.finish->usage.completion_tokens, static_cast<int32_t>(got.text.size()));
}

TEST_F(EngineGrammarTest, EachChoiceHasItsOwnPlaceInTheGrammar) {
  start(256);
  const auto got =
      constrained({.kind = GrammarKind::kJsonSchema,
                   .text = R"({"type":"object","properties":{"name":{"enum":["a","bc"]},)"
                           R"("n":{"type":"integer","minimum":10,"maximum":99}},)"
                           R"("required":["name","n"],"additionalProperties":false})"},
                  4);
  ASSERT_FALSE(got.error) << got.error->message;
  ASSERT_EQ(got.choices.size(), 4U);
  for (const auto& [index, choice] : got.choices) {
    EXPECT_TRUE(choice.text.starts_with("{\"name\": \"")) << choice.text;
    EXPECT_EQ(choice.text.size(), choice.text.find("bc") == std::string::npos ? 22U : 23U)
        << choice.text;
    ASSERT_TRUE(choice.finish);
    EXPECT_EQ(choice.finish->reason, FinishReason::kStop);
  }
}

TEST_F(EngineGrammarTest, PreemptedSequencesGoOnInTheirGrammar) {
  start(14);  // of 8 tokens each: not enough for all of them
  std::vector<std::future<Collected>> all;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    auto asked = request("a>");
    asked.grammar = GrammarSpec{.kind = GrammarKind::kRegex, .text = "([ab]x){20}"};
    asked.sampling.temperature = 30;
    asked.sampling.seed = seed;
    all.push_back(run(std::move(asked)));
  }
  for (auto& one : all) {
    const auto got = one.get();
    ASSERT_FALSE(got.error) << got.error->message;
    ASSERT_EQ(got.text.size(), 40U);
    for (size_t i = 1; i < 40; i += 2) EXPECT_EQ(got.text[i], 'x');
  }
  wait_for_used(0);
}

TEST_F(EngineGrammarTest, ABadGrammarHarmsNobody) {
  start(64);
  auto good = run(request("fox>"));
  const auto bad = constrained({.kind = GrammarKind::kJsonSchema,
                                .text = R"({"properties":{"a":{"not":{}}}})",
                                .pointer = "/response_format/json_schema/schema"});
  ASSERT_TRUE(bad.error);
  EXPECT_EQ(bad.error->status, 400);
  EXPECT_EQ(bad.error->code, "unsupported_grammar");
  EXPECT_EQ(bad.error->pointer, "/response_format/json_schema/schema/properties/a/not");
  EXPECT_EQ(good.get().text, "the brown own fox jumps");
}

TEST_F(EngineGrammarTest, AnAnswerCutByLengthIsABeginningOfOne) {
  start(64);
  auto asked = request("a>");
  asked.grammar = GrammarSpec{.kind = GrammarKind::kChoice, .text = R"(["abcdefghij"])"};
  asked.sampling.max_tokens = 4;
  const auto got = run(std::move(asked)).get();
  ASSERT_TRUE(got.finish);
  EXPECT_EQ(got.text, "abcd");
  EXPECT_EQ(got.finish->reason, FinishReason::kLength);
  EXPECT_EQ(got.finish->usage.completion_tokens, 4);
}

TEST_F(EngineGrammarTest, WithLogprobsEveryTokenIsSampled) {
  start(64);
  auto asked = request("a>");
  asked.grammar = GrammarSpec{.kind = GrammarKind::kChoice, .text = R"(["abcdefghij"])"};
  asked.sampling.logprobs = 0;
  const auto got = run(std::move(asked)).get();
  EXPECT_EQ(got.text, "abcdefghij");
  EXPECT_EQ(got.choices.at(0).logprobs.size(), 10U);
}

TEST_F(EngineGrammarTest, StopStringsHoldInForcedTextToo) {
  start(64);
  auto asked = request("a>");
  asked.grammar = GrammarSpec{.kind = GrammarKind::kChoice, .text = R"(["abcdefghij"])"};
  asked.sampling.stop = {"efg"};
  const auto got = run(std::move(asked)).get();
  EXPECT_EQ(got.text, "abcd");
  ASSERT_TRUE(got.finish);
  EXPECT_EQ(got.finish->stop_string, "efg");
}

TEST_F(EngineGrammarTest, SeveralPassesInFlight) {
  start(256, {.max_in_flight = 2});
  const auto got = constrained({.kind = GrammarKind::kRegex, .text = "[a-c]{50}"}, 3);
  ASSERT_FALSE(got.error) << got.error->message;
  for (const auto& [index, choice] : got.choices) EXPECT_EQ(choice.text.size(), 50U);
}

class JumpForwardTest : public EngineGrammarTest {
 protected:
  JumpForwardTest() { merges_ = {"n a", "m e", "na me"}; }
};

// The last token of an answer was sampled or appended, never computed: it is no part of
// completion_tokens.
std::vector<int32_t> without_last(std::vector<int32_t> tokens) {
  tokens.pop_back();
  return tokens;
}

TEST_F(JumpForwardTest, ForcedTextIsCutAsTheTokenizerCutsIt) {
  start(64);
  const auto got = constrained({.kind = GrammarKind::kRegex, .text = "([pq]name){6}"});
  ASSERT_TRUE(got.finish);
  ASSERT_EQ(got.text.size(), 30U);
  EXPECT_EQ(got.finish->usage.completion_tokens, 12);
  EXPECT_EQ(got.finish->completion_tokens, without_last(tokenizer_->encode(got.text)));
}

TEST_F(JumpForwardTest, SampledTokensGiveWayToWhatTheForcedTextMakesOfThem) {
  start(64);
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const auto got =
        constrained({.kind = GrammarKind::kRegex, .text = "(pna(me|xx)){4}!"}, 1, seed);
    ASSERT_TRUE(got.finish) << seed;
    EXPECT_EQ(got.text.size(), 21U) << got.text;
    EXPECT_EQ(got.finish->completion_tokens, without_last(tokenizer_->encode(got.text)))
        << got.text;
  }
  wait_for_used(0);
}

TEST_F(JumpForwardTest, TheModelReadsWhatWasAppended) {
  // It says the reply only as long as its pages hold the reply so far.
  script_.replies = {{"say", "pnameqnamexyz"}, {"", "?"}};
  start(64);
  auto asked = request("say>");
  asked.grammar = GrammarSpec{.kind = GrammarKind::kRegex, .text = "([pq]name)*[a-z]{3}"};
  const auto got = run(std::move(asked)).get();
  ASSERT_FALSE(got.error) << got.error->message;
  EXPECT_EQ(got.text, "pnameqnamexyz");
}

TEST_F(JumpForwardTest, LengthLimitsHold) {
  start(64);
  for (int32_t limit = 1; limit < 12; ++limit) {
    auto asked = request("a>");
    asked.grammar = GrammarSpec{.kind = GrammarKind::kRegex, .text = "([pq]name){6}"};
    asked.sampling.max_tokens = limit;
    const auto got = run(std::move(asked)).get();
    ASSERT_TRUE(got.finish);
    EXPECT_EQ(got.finish->reason, FinishReason::kLength);
    EXPECT_EQ(got.finish->usage.completion_tokens, limit);
  }
  wait_for_used(0);
}

}  // namespace
}  // namespace tandem::engine
