#include "router/connectors/facts.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

BodyFacts facts_of(Api api, std::string_view body) {
  auto facts = read_facts(api, body);
  EXPECT_TRUE(facts) << facts.error().message;
  return facts ? std::move(*facts) : BodyFacts{};
}

TEST(Facts, ReadsAChatBody) {
  const BodyFacts facts = facts_of(
      Api::kChat,
      R"({"mo\u0064el":"org\/name","stream":true,"stream_options":{"include_usage":true},"n":3,)"
      R"("max_completion_tokens":99,"max_tokens":5,"priority":-2,"user":"u",)"
      R"("messages":[{"role":"user","content":"hello"}]})");
  EXPECT_EQ(facts.model, "org/name");
  EXPECT_TRUE(facts.stream);
  EXPECT_TRUE(facts.include_usage);
  EXPECT_EQ(facts.n, 3);
  EXPECT_EQ(facts.batch, 1);
  EXPECT_EQ(facts.max_tokens, 99);
  EXPECT_EQ(facts.priority, -2);
  EXPECT_EQ(facts.affinity_key, "u");
  EXPECT_EQ(facts.prompt_bytes, 35);
  EXPECT_EQ(facts.estimated_tokens, 9);
}

TEST(Facts, WhatIsOfAnotherKindIsLeftToTheEngine) {
  const BodyFacts facts = facts_of(
      Api::kChat, R"({"model":7,"stream":"yes","stream_options":[],"n":"2","max_tokens":null,)"
                  R"("messages":"x","user":{},"metadata":3})");
  EXPECT_EQ(facts.model, "");
  EXPECT_FALSE(facts.stream);
  EXPECT_EQ(facts.n, 1);
  EXPECT_EQ(facts.max_tokens, std::nullopt);
  EXPECT_EQ(facts.affinity_key, "");
}

TEST(Facts, CountsPrompts) {
  EXPECT_EQ(facts_of(Api::kCompletions, R"({"prompt":"a"})").batch, 1);
  EXPECT_EQ(facts_of(Api::kCompletions, R"({"prompt":["a","b","c"]})").batch, 3);
  EXPECT_EQ(facts_of(Api::kCompletions, R"({"prompt":[1,2,3]})").batch, 1);
  EXPECT_EQ(facts_of(Api::kCompletions, R"({"prompt":[1,2,3]})").estimated_tokens, 3);
  EXPECT_EQ(facts_of(Api::kCompletions, R"({"prompt":[[1],[2]]})").batch, 2);
  EXPECT_EQ(facts_of(Api::kGenerate, R"({"text":["a","b"]})").batch, 2);
  EXPECT_EQ(facts_of(Api::kGenerate, R"({"input_ids":[[1,2],[3]]})").batch, 2);
  EXPECT_EQ(facts_of(Api::kGenerate, R"({"input_ids":[[1]],"sampling_params":{"n":4}})").n, 4);
  EXPECT_EQ(facts_of(Api::kChat, R"({"messages":[{},{}]})").batch, 1);
  EXPECT_EQ(facts_of(Api::kResponses, R"({"input":[{},{}]})").batch, 1);
}

TEST(Facts, PromptLogprobs) {
  EXPECT_TRUE(facts_of(Api::kGenerate, R"({"text":"a","return_logprob":true})").input_logprobs);
  EXPECT_TRUE(facts_of(Api::kGenerate, R"({"text":["a","b"],"return_logprob":[false,true]})")
                  .input_logprobs);
  EXPECT_FALSE(facts_of(Api::kGenerate, R"({"text":"a","return_logprob":false})").input_logprobs);
  EXPECT_TRUE(
      facts_of(Api::kCompletions, R"({"prompt":"a","echo":true,"logprobs":1})").input_logprobs);
  EXPECT_FALSE(facts_of(Api::kCompletions, R"({"prompt":"a","logprobs":1})").input_logprobs);
  EXPECT_TRUE(facts_of(Api::kChat, R"({"logprobs":true,"return_meta_info":true})").input_logprobs);
  EXPECT_FALSE(facts_of(Api::kChat, R"({"logprobs":true})").input_logprobs);
  EXPECT_TRUE(facts_of(Api::kChat, R"({"prompt_logprobs":0})").prompt_logprobs);
}

TEST(Facts, SessionNamesInTheirOrder) {
  EXPECT_EQ(facts_of(Api::kChat, R"({"user":"u","prompt_cache_key":"k"})").affinity_key, "k");
  EXPECT_EQ(
      facts_of(Api::kGenerate, R"({"user":"u","session_params":{"session_id":"s"}})").affinity_key,
      "s");
  EXPECT_EQ(facts_of(Api::kMessages,
                     R"({"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"s-1\"}"}})")
                .affinity_key,
            "s-1");
  EXPECT_EQ(facts_of(Api::kMessages, R"({"metadata":{"user_id":"plain"}})").affinity_key, "plain");
}

TEST(Facts, RefusesWhatNobodyShouldRead) {
  EXPECT_EQ(read_facts(Api::kChat, "{").error().code, "invalid_json");
  EXPECT_EQ(read_facts(Api::kChat, "[]").error().code, "invalid_json");
  EXPECT_EQ(read_facts(Api::kChat, "{\"a\":\"\xff\"}").error().code, "invalid_json");
  EXPECT_EQ(read_facts(Api::kChat, std::string(100000, '[')).error().status, 400);
  for (const char* body :
       {R"({"model":"a","model":"b"})", R"({"stream":true,"str\u0065am":false})",
        R"({"bootstrap_room":1,"bootstrap_room":2})",
        R"({"kv_transfer_params":{},"kv_transfer_params":{}})", R"({"n":1,"n":2})"}) {
    const auto facts = read_facts(Api::kChat, body);
    ASSERT_FALSE(facts) << body;
    EXPECT_EQ(facts.error().code, "duplicate_member");
    EXPECT_EQ(facts.error().status, 400);
  }
  EXPECT_TRUE(read_facts(Api::kChat, R"({"unknown":1,"unknown":2})"));
}

std::string conversation(int turns, std::string_view tail, bool tools_last) {
  std::string messages = "[";
  for (int i = 0; i < turns; ++i)
    messages += std::string(i == 0 ? "" : ",") + R"({"role":"user","content":")" +
                std::string(7000, static_cast<char>('a' + i)) + "\"}";
  messages += "]";
  const std::string tools = "\"tools\":[\"" + std::string(1000, 't') + "\"]";
  return tools_last ? "{\"messages\":" + messages + "," + tools + std::string(tail) + "}"
                    : "{" + tools + ",\"messages\":" + messages + std::string(tail) + "}";
}

TEST(Facts, ALongerConversationBeginsWithTheSameChunks) {
  const BodyFacts two = facts_of(Api::kChat, conversation(2, R"(,"n":1)", true));
  const BodyFacts three = facts_of(Api::kChat, conversation(3, R"(,"temperature":0)", false));
  ASSERT_GT(two.prefix.size(), 6U);
  ASSERT_GT(three.prefix.size(), two.prefix.size());
  EXPECT_TRUE(std::equal(two.prefix.begin(), two.prefix.end(), three.prefix.begin()));
  // Another model has other chunks, and so has another beginning.
  const BodyFacts other = facts_of(Api::kChat, conversation(2, R"(,"model":"x")", true));
  EXPECT_NE(other.prefix[0], two.prefix[0]);
  std::string changed = conversation(2, "", true);
  changed[changed.find("aaaa")] = 'z';
  EXPECT_NE(facts_of(Api::kChat, changed).prefix.back(), two.prefix.back());
  EXPECT_TRUE(facts_of(Api::kCompletions, R"({"prompt":["a","b"]})").prefix.empty());
}

TEST(Facts, ALongPromptIsKnownInLargerChunksToo) {
  const auto of = [](size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += std::to_string(text.size()) + " ";
    return facts_of(Api::kCompletions, R"({"prompt":")" + text.substr(0, bytes) + "\"}");
  };
  constexpr size_t kNear = kPrefixChunkBytes * kPrefixChunks;
  const BodyFacts near = of(kNear);
  EXPECT_EQ(near.prefix.size(), kPrefixChunks);
  EXPECT_TRUE(near.far.empty());
  const BodyFacts longer = of(kNear + 2 * kFarChunkBytes);
  const BodyFacts longest = of(1 << 20);
  EXPECT_EQ(longer.prefix, near.prefix);
  EXPECT_EQ(longest.prefix, near.prefix);
  EXPECT_EQ(longest.opening, near.opening);
  EXPECT_EQ(longer.far.size(), kNear / kFarChunkBytes + 2);
  EXPECT_EQ(longest.far.size(), (1U << 20) / kFarChunkBytes);
  EXPECT_TRUE(std::equal(longer.far.begin(), longer.far.end(), longest.far.begin()));
  // Where both kinds have an entry, it is the same.
  EXPECT_EQ(longest.far[0], near.prefix[kFarChunkBytes / kPrefixChunkBytes - 1]);
}

}  // namespace
}  // namespace tandem::router
