#include "engine/choice_text.h"

#include <random>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace tandem::engine {
namespace {

using protocol::FinishReason;
using protocol::SamplingParams;
using protocol::ScoredToken;

struct Said {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<int32_t> scored;
  protocol::FinishEvent finish;
};

void add(Said& said, const std::optional<protocol::TextEvent>& event) {
  if (!event) return;
  said.text += event->text;
  said.tokens.insert(said.tokens.end(), event->tokens.begin(), event->tokens.end());
  for (const auto& logprobs : event->logprobs) said.scored.push_back(logprobs.chosen.token);
}

// Byte tokens of `text`, one at a time; a stop token at the end when given.
Said say(const std::string& text, const SamplingParams& params,
         std::optional<int32_t> stop_token = {}) {
  ChoiceText choice(byte_tokenizer(), params, 0);
  Said said;
  const auto tokens = byte_tokenizer()->encode(text);
  for (const int32_t token : tokens) {
    add(said, choice.push(ScoredToken{token, -0.5F, {}}));
    if (choice.stopped()) break;
  }
  const bool stopped = choice.stopped() || stop_token;
  const auto reason = stopped ? FinishReason::kStop : FinishReason::kLength;
  std::optional<ScoredToken> last;
  if (stop_token) last = ScoredToken{*stop_token, -0.5F, {}};
  add(said, choice.flush(reason, last));
  said.finish = choice.finish(reason, last, {.prompt_tokens = 3});
  return said;
}

TEST(ChoiceText, TokensAndLogprobsTravelTogetherHoweverTextIsHeldBack) {
  std::mt19937 random(4);
  const std::vector<std::string> pieces = {
      "a", "sto", "stop", "p", "\xF0\x9F\xAB\xA0", "\xED\x95\x9C", "\xF0\x9F", "s"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (unsigned i = 0; i < 1 + random() % 10; ++i) text += pieces[random() % pieces.size()];
    SamplingParams params;
    params.logprobs = 0;
    params.stop = {"stop", "a\xED\x95\x9C"};
    params.include_stop = random() % 2 != 0;
    const Said said = say(text, params);
    const auto all = byte_tokenizer()->encode(text);
    ASSERT_LE(said.tokens.size(), all.size());
    const std::vector<int32_t> pushed(all.begin(),
                                      all.begin() + static_cast<long>(said.tokens.size()));
    EXPECT_EQ(said.tokens, pushed) << "each once, in order";
    EXPECT_EQ(said.scored, said.tokens);
    EXPECT_EQ(said.finish.usage.completion_tokens, static_cast<int32_t>(said.tokens.size()));
    if (!said.finish.stop_string) {
      EXPECT_EQ(said.tokens, all);
    } else if (!params.include_stop) {
      EXPECT_EQ(said.text.find("stop"), std::string::npos);
    } else {
      EXPECT_TRUE(said.text.ends_with(*said.finish.stop_string));
    }
  }
}

// llama.cpp#14937.
TEST(ChoiceText, ALengthInTheMiddleOfACharacterDropsItsBeginning) {
  const Said said = say("ok \xF0\x9F\xAB", {});
  EXPECT_EQ(said.text, "ok ");
  EXPECT_EQ(said.tokens.size(), 6U) << "its tokens are counted and told";
  EXPECT_EQ(said.finish.reason, FinishReason::kLength);
  EXPECT_EQ(say("ok \xF0\x9F", {}, 256).text, "ok \xEF\xBF\xBD") << "the model meant to end there";
}

TEST(ChoiceText, AStopStringStaysWhenAskedFor) {
  SamplingParams params;
  params.stop = {"own fox"};
  EXPECT_EQ(say("the own fox jumps", params).text, "the ");
  params.include_stop = true;
  const Said said = say("the own fox jumps", params);
  EXPECT_EQ(said.text, "the own fox");
  EXPECT_EQ(said.finish.stop_string, "own fox");
}

TEST(ChoiceText, AStopTokenIsToldAndItsTextStaysWhenAskedFor) {
  SamplingParams params;
  params.logprobs = 0;
  Said said = say("abc", params, 'd');
  EXPECT_EQ(said.text, "abc");
  EXPECT_EQ(said.finish.usage.completion_tokens, 4);
  EXPECT_EQ(said.tokens.size(), 3U);
  const int32_t token = byte_tokenizer()->encode("d").front();
  params.include_stop = true;
  said = say("abc", params, token);
  EXPECT_EQ(said.text, "abcd");
  EXPECT_EQ(said.finish.stop_token, token);
  EXPECT_EQ(said.scored.size(), 4U);
  EXPECT_EQ(say("abc", params, 256).text, "abc") << "an end of turn has no text";
}

TEST(ChoiceText, NoStopStringBeforeMinTokens) {
  SamplingParams params;
  params.stop = {"ab"};
  params.min_tokens = 6;
  EXPECT_EQ(say("abababab", params).text, "ababab") << "only the text from there on counts";
  params.min_tokens = 5;
  EXPECT_EQ(say("abababab", params).text, "abab");
  params.min_tokens = 9;
  EXPECT_EQ(say("abababab", params).text, "abababab");
}

}  // namespace
}  // namespace tandem::engine
