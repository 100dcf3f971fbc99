#include "router/usage/reply_rewriter.h"

#include <gtest/gtest.h>

#include "base/json_value.h"
#include "router/usage/reply_words.h"
#include "router/usage/whole_as_stream.h"

namespace tandem::router {
namespace {

using Need = ReplyRewriter::Need;

PromptTruth truth(std::optional<int64_t> prompt, std::optional<int64_t> cached) {
  PromptTruth made;
  made.counts = {prompt, cached, std::nullopt};
  return made;
}

ReplyRules pair_rules(Api api) {
  ReplyRules rules;
  rules.api = api;
  rules.pair = true;
  return rules;
}

// What the client gets; the input when it is unchanged.
std::string rewritten(ReplyRewriter& rewriter, const std::string& json, bool whole,
                      const PromptTruth* known) {
  const auto out = rewriter.rewrite(json, whole, known);
  EXPECT_TRUE(out) << json;
  if (!out) return "error";
  if (out->drop) return "dropped";
  return out->json.value_or(json);
}

std::string rewritten(const ReplyRules& rules, const std::string& json, bool whole,
                      const PromptTruth* known) {
  ReplyRewriter rewriter(rules);
  return rewritten(rewriter, json, whole, known);
}

TEST(ReplyRewriter, ChatTellsPrefillsPromptAndCachedTokens) {
  const std::string chunk =
      R"({ "id":"x", "choices":[], "big":12345678901234567890, "usage":{"prompt_tokens":10,)"
      R"("completion_tokens":4,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":9,)"
      R"("audio":1},"z":{"y":1.50}} })";
  ReplyRewriter rewriter(pair_rules(Api::kChat));
  EXPECT_EQ(rewriter.need(chunk, false), Need::kWait);
  const PromptTruth known = truth(12, 5);
  EXPECT_EQ(rewritten(rewriter, chunk, false, &known),
            R"({ "id":"x", "choices":[], "big":12345678901234567890, "usage":{"prompt_tokens":12,)"
            R"("completion_tokens":4,"total_tokens":16,"prompt_tokens_details":{"cached_tokens":5,)"
            R"("audio":1},"z":{"y":1.50}} })");
  EXPECT_EQ(rewriter.told().prompt_tokens, 12);
  EXPECT_EQ(rewriter.told().cached_tokens, 5);
  EXPECT_EQ(rewriter.told().completion_tokens, 4);
}

TEST(ReplyRewriter, WithoutPrefillsNumberNoCachedNumberIsTold) {
  const std::string json =
      R"({"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
      R"("prompt_tokens_details":{"cached_tokens":9,"audio":1}}})";
  const std::string without =
      R"({"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
      R"("prompt_tokens_details":{"audio":1}}})";
  const PromptTruth silent = truth(10, std::nullopt);
  EXPECT_EQ(rewritten(pair_rules(Api::kCompletions), json, true, &silent), without);
  EXPECT_EQ(rewritten(pair_rules(Api::kCompletions), json, true, nullptr), without);
}

TEST(ReplyRewriter, SuppliesTheCountThatDecodeDoesNotReport) {
  const PromptTruth known = truth(221, 128);
  EXPECT_EQ(rewritten(pair_rules(Api::kChat),
                      R"({"usage":{"prompt_tokens":221,"total_tokens":225,"completion_tokens":4,)"
                      R"("prompt_tokens_details":null}})",
                      true, &known),
            R"({"usage":{"prompt_tokens":221,"total_tokens":225,"completion_tokens":4,)"
            R"("prompt_tokens_details":{"cached_tokens":128}}})");
  EXPECT_EQ(rewritten(pair_rules(Api::kChat),
                      R"({"usage":{"prompt_tokens":1,"completion_tokens":4}})", true, &known),
            R"({"usage":{"prompt_tokens_details":{"cached_tokens":128},"prompt_tokens":221,)"
            R"("completion_tokens":4}})");
}

TEST(ReplyRewriter, OneWorkersNumbersStandAndAreRead) {
  ReplyRules rules;
  const std::string json =
      R"({"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":4,)"
      R"("total_tokens":99,"prompt_tokens_details":{"cached_tokens":9}}})";
  ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewriter.need(json, true), Need::kRead);
  EXPECT_FALSE(rewriter.counted());
  EXPECT_EQ(rewritten(rewriter, json, true, nullptr), json);
  EXPECT_TRUE(rewriter.counted());
  EXPECT_EQ(rewriter.told().cached_tokens, 9);
}

TEST(ReplyRewriter, TokensAreNeverLookedAt) {
  ReplyRules rules = pair_rules(Api::kChat);
  rules.strip = {"kv_transfer_params", "prompt_token_ids"};
  const ReplyRewriter rewriter(rules);
  for (const char* chunk :
       {R"({"choices":[{"delta":{"content":"say \"usage\": {}"}}],"usage":null})",
        R"({"choices":[{"delta":{"content":"x"},"token_ids":null}],"prompt_token_ids":null})",
        R"({"choices":[],"usage" : null})", "[DONE]", "", "not json"}) {
    EXPECT_EQ(rewriter.need(chunk, false), Need::kNothing) << chunk;
  }
}

TEST(ReplyRewriter, CountsInEveryChunkDoNotWait) {
  const ReplyRewriter rewriter(pair_rules(Api::kChat));
  EXPECT_EQ(
      rewriter.need(R"({"choices":[{"delta":{},"finish_reason":null}],"usage":{"a":1}})", false),
      Need::kRead);
  EXPECT_EQ(
      rewriter.need(R"({"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"a":1}})", false),
      Need::kWait);
  EXPECT_EQ(rewriter.need(R"({"choices": [],"usage":{"a":1}})", false), Need::kWait);
}

TEST(ReplyRewriter, ResponsesEventsHoldTheReply) {
  const std::string json =
      R"({"type":"response.completed","sequence_number":9,"response":{"id":"r","output":[{"x":1}],)"
      R"("usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":6},"output_tokens":3,)"
      R"("output_tokens_details":{"reasoning_tokens":1},"total_tokens":10}}})";
  ReplyRewriter rewriter(pair_rules(Api::kResponses));
  const PromptTruth known = truth(8, 0);
  EXPECT_EQ(rewriter.need(json, false), Need::kWait);
  EXPECT_EQ(
      rewritten(rewriter, json, false, &known),
      R"({"type":"response.completed","sequence_number":9,"response":{"id":"r","output":[{"x":1}],)"
      R"("usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":0},"output_tokens":3,)"
      R"("output_tokens_details":{"reasoning_tokens":1},"total_tokens":11}}})");
  EXPECT_EQ(rewriter.need(R"({"type":"response.created","response":{"usage":null}})", false),
            Need::kNothing);
  EXPECT_EQ(rewriter.told().completion_tokens, 3);
}

TEST(ReplyRewriter, AnthropicCountsInTwoEvents) {
  ReplyRewriter rewriter(pair_rules(Api::kMessages));
  const std::string start =
      R"({"type":"message_start","message":{"id":"m","usage":{"input_tokens":20,)"
      R"("cache_read_input_tokens":19,"output_tokens":0}}})";
  const std::string delta =
      R"({"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}})";
  EXPECT_EQ(rewriter.need(start, false), Need::kRead);  // tokens follow: it does not wait
  EXPECT_EQ(rewriter.need(delta, false), Need::kWait);
  // Prefill has not answered yet: no cached count is better than a wrong one.
  EXPECT_EQ(rewritten(rewriter, start, false, nullptr),
            R"({"type":"message_start","message":{"id":"m","usage":{"input_tokens":20,)"
            R"("output_tokens":0}}})");
  const PromptTruth known = truth(20, 16);
  EXPECT_EQ(rewritten(rewriter, delta, false, &known),
            R"({"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":)"
            R"({"cache_read_input_tokens":16,"output_tokens":5}})");
  EXPECT_EQ(rewriter.told().prompt_tokens, 20);
  EXPECT_EQ(rewriter.told().cached_tokens, 16);
  EXPECT_EQ(rewriter.told().completion_tokens, 5);

  ReplyRewriter alone(ReplyRules{.api = Api::kMessages});
  EXPECT_EQ(rewritten(alone, start, false, nullptr), start);
  EXPECT_EQ(rewritten(alone, delta, false, nullptr), delta);
  EXPECT_EQ(alone.told().prompt_tokens, 20);
  EXPECT_EQ(alone.told().cached_tokens, 19);
  EXPECT_EQ(alone.told().completion_tokens, 5);
}

TEST(ReplyRewriter, GenerateCountsInEveryEvent) {
  ReplyRewriter rewriter(pair_rules(Api::kGenerate));
  const std::string first =
      R"({"text":"a","meta_info":{"id":"1","finish_reason":null,"prompt_tokens":9,)"
      R"("completion_tokens":1,"cached_tokens":12},"index":1})";
  const std::string last =
      R"({"text":"ab","meta_info":{"id":"1","finish_reason":{"type":"stop"},"prompt_tokens":9,)"
      R"("completion_tokens":2,"cached_tokens":12},"index":1})";
  EXPECT_EQ(rewriter.need(first, false), Need::kRead);
  EXPECT_EQ(rewriter.need(last, false), Need::kWait);
  EXPECT_EQ(rewritten(rewriter, first, false, nullptr), first);
  PromptTruth known;
  known.parts = {{5, 1, std::nullopt}, {9, 4, std::nullopt}};
  EXPECT_EQ(rewritten(rewriter, last, false, &known),
            R"({"text":"ab","meta_info":{"id":"1","finish_reason":{"type":"stop"},)"
            R"("prompt_tokens":9,"completion_tokens":2,"cached_tokens":4},"index":1})");
  EXPECT_EQ(rewriter.told().completion_tokens, 2);
  EXPECT_EQ(rewriter.told().cached_tokens, 4);
}

TEST(ReplyRewriter, GenerateBatchesAreCountedPromptByPrompt) {
  ReplyRewriter rewriter(pair_rules(Api::kGenerate));
  PromptTruth known;
  known.parts = {{5, 1, std::nullopt}, {6, 2, std::nullopt}};
  EXPECT_EQ(
      rewritten(rewriter,
                R"([{"meta_info":{"prompt_tokens":5,"cached_tokens":5,"completion_tokens":3}},)"
                R"( {"meta_info":{"prompt_tokens":6,"cached_tokens":6,"completion_tokens":4}}])",
                true, &known),
      R"([{"meta_info":{"prompt_tokens":5,"cached_tokens":1,"completion_tokens":3}},)"
      R"( {"meta_info":{"prompt_tokens":6,"cached_tokens":2,"completion_tokens":4}}])");
  EXPECT_EQ(rewriter.told().prompt_tokens, 11);
  EXPECT_EQ(rewriter.told().cached_tokens, 3);
  EXPECT_EQ(rewriter.told().completion_tokens, 7);
}

TEST(ReplyRewriter, JoinsThePromptsLogprobs) {
  ReplyRules rules = pair_rules(Api::kGenerate);
  rules.input_logprobs = true;
  PromptTruth known;
  known.parts = {{2, 0, std::nullopt}};
  known.input_logprobs = {"[[-0.5,1,null], [-0.5,2,null]]"};
  known.input_top_logprobs = {""};
  const std::string chunk =
      R"({"meta_info":{"prompt_tokens":2,"cached_tokens":0,"completion_tokens":1,)"
      R"("input_token_logprobs":[],"output_token_logprobs":[[-1,3,null]]}})";
  ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewriter.need(chunk, false), Need::kWait);
  for (int i = 0; i < 2; ++i) {  // every event that carries the field
    EXPECT_EQ(rewritten(rewriter, chunk, false, &known),
              R"({"meta_info":{"prompt_tokens":2,"cached_tokens":0,"completion_tokens":1,)"
              R"("input_token_logprobs":[[-0.5,1,null], [-0.5,2,null]],)"
              R"("output_token_logprobs":[[-1,3,null]]}})");
  }
  EXPECT_EQ(
      rewritten(rules, R"({"meta_info":{"input_token_logprobs":[ [-9,9,null]]}})", true, &known),
      R"({"meta_info":{"prompt_tokens":2,"cached_tokens":0,)"
      R"("input_token_logprobs":[[-0.5,1,null], [-0.5,2,null],[-9,9,null]]}})");
}

TEST(ReplyRewriter, ChatWithTheNativeFormInsideGetsThePromptsLogprobs) {
  ReplyRules rules = pair_rules(Api::kChat);
  rules.input_logprobs = true;
  const auto known = read_prompt_truth(
      Api::kChat,
      R"({"choices":[{"index":0,"message":{},"meta_info":{"input_token_logprobs":[[-0.5,1,null]],)"
      R"("input_top_logprobs":[[[-0.5,1,null]]]}},{"index":1,"meta_info":{}}],)"
      R"("usage":{"prompt_tokens":4,"completion_tokens":2}})");
  ASSERT_TRUE(known);
  EXPECT_EQ(known->generated, 2);
  EXPECT_EQ(
      rewritten(rules,
                R"({"choices":[{"index":1,"meta_info":{"input_token_logprobs":[]}},{"index":0,)"
                R"("message":{"content":"x"},"meta_info":{"id":"a","input_token_logprobs":[],)"
                R"("input_top_logprobs":[],"cached_tokens":3}}]})",
                true, &*known),
      R"({"choices":[{"index":1,"meta_info":{"input_token_logprobs":[]}},{"index":0,)"
      R"("message":{"content":"x"},"meta_info":{"id":"a","input_token_logprobs":[[-0.5,1,null]],)"
      R"("input_top_logprobs":[[[-0.5,1,null]]],"cached_tokens":3}}]})");
  ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewriter.need(R"({"choices":[{"meta_info":{"input_token_logprobs":[]}}]})", true),
            ReplyRewriter::Need::kWait);
}

TEST(ReplyRewriter, EchoedCompletionsGetThePromptsLogprobsOnce) {
  ReplyRules rules = pair_rules(Api::kCompletions);
  rules.input_logprobs = true;
  const auto known = read_prompt_truth(
      Api::kCompletions,
      R"({"choices":[{"index":0,"logprobs":{"tokens":["a","b","x"],"token_logprobs":[null,-1,-2],)"
      R"("text_offset":[0,1,2]}}],"usage":{"prompt_tokens":2,"completion_tokens":1}})");
  ASSERT_TRUE(known);
  ReplyRewriter rewriter(rules);
  const std::string chunk =
      R"({"choices":[{"index":0,"text":"x","logprobs":{"tokens":["x"],"token_logprobs":[-2]}}]})";
  EXPECT_EQ(rewriter.need(chunk, false), Need::kWait);
  EXPECT_EQ(rewritten(rewriter, chunk, false, &*known),
            R"({"choices":[{"index":0,"text":"x","logprobs":{"tokens":["a","b","x"],)"
            R"("token_logprobs":[null,-1,-2]}}]})");
  EXPECT_EQ(rewritten(rewriter, chunk, false, &*known), chunk);
}

TEST(ReplyRewriter, WhatIsBetweenWorkersIsTakenOut) {
  ReplyRules rules;
  rules.strip = {"kv_transfer_params", "disaggregated_params", "prompt_token_ids"};
  EXPECT_EQ(rewritten(rules,
                      R"({"prompt_token_ids":[1,2],"choices":[{"index":0,"disaggregated_params":)"
                      R"({"ctx_request_id":9223372036854775807},"text":"a"},{"index":1}],)"
                      R"("kv_transfer_params":{"remote_host":"h"}})",
                      true, nullptr),
            R"({"choices":[{"index":0,"text":"a"},{"index":1}]})");
  const std::string nulls = R"({"kv_transfer_params":null,"prompt_token_ids": null})";
  EXPECT_EQ(rewritten(rules, nulls, true, nullptr), nulls);
  const ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewriter.need(R"({"kv_transfer_params": {"a":1}})", false), Need::kRead);
}

TEST(ReplyRewriter, UsageThatNobodyAskedForIsReadAndDropped) {
  ReplyRules rules = pair_rules(Api::kChat);
  rules.hide_usage = true;
  const PromptTruth known = truth(3, 1);
  ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewritten(rewriter,
                      R"({"choices":[],"usage":{"prompt_tokens":3,)"
                      R"("completion_tokens":4,"total_tokens":7}})",
                      false, &known),
            "dropped");
  EXPECT_EQ(rewriter.told().completion_tokens, 4);
}

TEST(ReplyRewriter, WrongCountsNeverOverflowOrGoNegative) {
  const PromptTruth known = truth(5, 2);
  ReplyRewriter rewriter(pair_rules(Api::kChat));
  EXPECT_EQ(rewritten(rewriter,
                      R"({"usage":{"prompt_tokens":-7,"completion_tokens":-1,"total_tokens":9}})",
                      true, &known),
            R"({"usage":{"prompt_tokens_details":{"cached_tokens":2},"prompt_tokens":5,)"
            R"("completion_tokens":-1,"total_tokens":9}})");
  EXPECT_EQ(rewriter.told().completion_tokens, 0);
  for (const char* json : {"", "{", "[1,2]", "{\"usage\":[]}", "{\"usage\":{}}", "[[]]",
                           R"({"response":[1],"message":"x","meta_info":3,"choices":7})"}) {
    ReplyRules rules = pair_rules(Api::kGenerate);
    rules.strip = {"a"};
    rules.input_logprobs = true;
    EXPECT_EQ(rewritten(rules, json, true, nullptr), json);
  }
}

TEST(ReplyRewriter, TandemWorkersLastWord) {
  const std::string chunk =
      R"({ "id":"x", "choices":[], "usage":{"prompt_tokens":10,"completion_tokens":4,)"
      R"("total_tokens":14,"prompt_tokens_details":{"cached_tokens":9,"audio":1}}, )"
      R"("tandem":{"completion_token_ids":[[1,2,3]]} })";
  ReplyRules rules = pair_rules(Api::kChat);
  rules.tandem = true;
  const PromptTruth known = truth(12, 5);
  ReplyRewriter rewriter(rules);
  EXPECT_EQ(rewriter.need(chunk, false), Need::kWait);
  EXPECT_EQ(rewriter.need(R"({"usage":{"prompt_tokens":1}})", false), Need::kNothing);
  EXPECT_EQ(rewritten(rewriter, chunk, false, &known),
            R"({ "id":"x", "choices":[], "usage":{"prompt_tokens":12,"completion_tokens":4,)"
            R"("total_tokens":16,"prompt_tokens_details":{"cached_tokens":5,"audio":1}} })");
  EXPECT_EQ(rewriter.completion_ids(), (std::vector<std::vector<int32_t>>{{1, 2, 3}}));

  rules.pair = false;
  rules.tandem_report = R"({"kv_bytes":7})";
  EXPECT_EQ(rewritten(rules, R"({"usage":{"prompt_tokens":3,"completion_tokens":1},"tandem":{}})",
                      true, nullptr),
            R"({"usage":{"total_tokens":4,"prompt_tokens":3,"completion_tokens":1},)"
            R"("tandem":{"kv_bytes":7}})");
}

TEST(ReplyRewriter, TandemWorkersNonsenseIsAnError) {
  ReplyRules rules;
  rules.tandem = true;
  for (const char* text :
       {"", "[]", "{}", R"({"tandem":{}})", R"({"usage":{}})", R"({"usage":1,"tandem":{}})",
        R"({"usage":{},"tandem":{"completion_token_ids":[[-1]]}})",
        R"({"usage":{},"tandem":{"completion_token_ids":["a"]}})",
        R"({"usage":{},"tandem":{"completion_token_ids":[["a"]]}})"}) {
    ReplyRewriter rewriter(rules);
    EXPECT_FALSE(rewriter.rewrite(text, true, nullptr)) << text;
  }
}

TEST(PromptTruth, IsReadInEveryApi) {
  const auto chat = read_prompt_truth(
      Api::kChat, R"({"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,)"
                  R"("prompt_tokens_details":{"cached_tokens":4}}})");
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->counts.prompt, 9);
  EXPECT_EQ(chat->counts.cached, 4);
  EXPECT_EQ(chat->generated, 1);
  const auto none = read_prompt_truth(
      Api::kChat, R"({"usage":{"prompt_tokens":9,"prompt_tokens_details":null}})");
  EXPECT_EQ(none->counts.cached, std::nullopt);
  const auto responses = read_prompt_truth(
      Api::kResponses,
      R"({"usage":{"input_tokens":9,"output_tokens":1,"input_tokens_details":{"cached_tokens":0}}})");
  EXPECT_EQ(responses->counts.cached, 0);
  const auto messages =
      read_prompt_truth(Api::kMessages, R"({"usage":{"input_tokens":2,"cache_read_input_tokens":7,)"
                                        R"("cache_creation_input_tokens":1}})");
  EXPECT_EQ(messages->counts.prompt, 2);
  EXPECT_EQ(messages->counts.cached, 7);
  EXPECT_EQ(messages->counts.cache_written, 1);
  const auto batch = read_prompt_truth(
      Api::kGenerate, R"([{"meta_info":{"prompt_tokens":3,"cached_tokens":1,)"
                      R"("input_token_logprobs":[[1]]}},{"meta_info":{"prompt_tokens":4,)"
                      R"("cached_tokens":0}}])");
  ASSERT_EQ(batch->parts.size(), 2U);
  EXPECT_EQ(batch->counts.prompt, 7);
  EXPECT_EQ(batch->counts.cached, 1);
  EXPECT_EQ(batch->input_logprobs[0], "[[1]]");
  EXPECT_EQ(batch->input_logprobs[1], "");
  EXPECT_FALSE(read_prompt_truth(Api::kChat, "oops"));
}

TEST(PromptTruth, ImpossibleCountsAreNotTold) {
  const auto more = read_prompt_truth(
      Api::kChat, R"({"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":11}}})");
  EXPECT_EQ(more->counts.cached, 9);
  const auto negative = read_prompt_truth(Api::kChat, R"({"usage":{"prompt_tokens":-9}})");
  EXPECT_EQ(negative->counts.prompt, std::nullopt);
}

TEST(TandemPrefillReport, IsChecked) {
  const auto good = read_prefill_report(
      R"({"object":"tandem.prefill","usage":{"prompt_tokens":5,"cached_tokens":2},"kv_bytes":9,)"
      R"("blocks_sent":1})");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->truth.counts.cached, 2);
  EXPECT_EQ(good->kv_bytes, 9);
  EXPECT_EQ(good->blocks_sent, 1);
  for (const char* bad :
       {"", "{}", R"({"object":"tandem.prefill"})",
        R"({"object":"other","usage":{"prompt_tokens":5,"cached_tokens":2}})",
        R"({"object":"tandem.prefill","usage":{"prompt_tokens":5,"cached_tokens":6}})",
        R"({"object":"tandem.prefill","usage":{"prompt_tokens":0,"cached_tokens":0}})"}) {
    EXPECT_FALSE(read_prefill_report(bad)) << bad;
  }
}

TEST(ReplaceSseData, KeepsEverythingElse) {
  EXPECT_EQ(replace_sse_data("event: x\ndata: {\"a\":1}\nid: 7\n\n", "{}"),
            "event: x\ndata: {}\nid: 7\n\n");
  EXPECT_EQ(replace_sse_data("data:{}\r\n\r\n", "1"), "data:1\r\n\r\n");
  EXPECT_EQ(replace_sse_data("data: {\rdata: }\r\r", "2"), "data: 2\r\r");
  EXPECT_EQ(replace_sse_data(": c\ndata: {\"a\":\ndata: 1}\n\n", "{\n}"),
            ": c\ndata: {\ndata: }\n\n");
  EXPECT_EQ(replace_sse_data("\xEF\xBB\xBF"
                             "data: 1\n\n",
                             "2"),
            "\xEF\xBB\xBF"
            "data: 2\n\n");
  EXPECT_EQ(replace_sse_data("database: 1\ndata\n\n", "2"), "database: 1\ndata: 2\n\n");
}

TEST(WholeAsStream, IsAStreamOfOneEventAChoice) {
  const auto out = whole_as_stream(
      Api::kChat,
      R"({"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",)"
      R"("content":"a"},"finish_reason":"stop"}],"usage":{"total_tokens":4}})",
      true);
  ASSERT_TRUE(out);
  EXPECT_EQ(*out,
            R"(data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":)"
            R"({"role":"assistant","content":"a"},"finish_reason":"stop"}]})"
            "\n\n"
            R"(data: {"id":"x","object":"chat.completion.chunk","choices":[],"usage":)"
            R"({"total_tokens":4}})"
            "\n\ndata: [DONE]\n\n");
  EXPECT_FALSE(whole_as_stream(Api::kChat, "[]", false));
  EXPECT_FALSE(whole_as_stream(Api::kMessages, R"({"choices":[]})", false));
}

TEST(ReplyWords, AMemberIsFoundATextIsNot) {
  EXPECT_TRUE(holds_member(R"({"a" : 1})", "\"a\""));
  EXPECT_TRUE(holds_member(R"({"x":"a","b":"\"a\":1","a":{}})", "\"a\""));
  EXPECT_FALSE(holds_member(R"({"x":"a","b":"\"a\":1","a":null})", "\"a\""));
  EXPECT_FALSE(holds_member(R"({"x":"a"})", "\"a\""));
  EXPECT_FALSE(holds_member("\"a\"", "\"a\""));
  EXPECT_FALSE(holds_member("\"a\":", "\"a\""));
}

TEST(ReplyWords, AWordIsFoundWhereverItStands) {
  const std::string_view word = "\"usage\"";
  for (size_t size = word.size(); size < 150; ++size) {
    for (size_t place = 0; place + word.size() <= size; ++place) {
      std::string text(size, '"');
      text.replace(place, word.size(), word);
      for (size_t from = 0; from <= size; ++from)
        ASSERT_EQ(find_word(text, word, from), text.find(word, from)) << size << " " << place;
      text[place + 3] = 'x';
      ASSERT_EQ(find_word(text, word), std::string_view::npos);
    }
  }
}

TEST(ReplyRewriter, AnAnswerThatItsEngineGaveUpIsAnError) {
  ReplyRules rules;
  rules.api = Api::kChat;
  ReplyRewriter rewriter(rules);
  for (const char* const reason : {"abort", "error", "cancelled", "timeout"}) {
    const std::string json = std::string(R"({"choices":[{"index":0,"finish_reason":null},)") +
                             R"({"index":1,"delta":{},"finish_reason" : ")" + reason + "\"}]}";
    EXPECT_EQ(rewriter.need(json, false), Need::kRead);
    const auto out = rewriter.rewrite(json, false, nullptr);
    ASSERT_FALSE(out) << json;
    EXPECT_EQ(out.error().status, 502);
    EXPECT_EQ(out.error().code, "engine_failed");
  }
  for (
      const char* const fine :
      {R"({"choices":[{"finish_reason":"stop"}]})", R"({"choices":[{"finish_reason":"aborted"}]})",
       R"({"choices":[{"finish_reason":"tool_calls"}]})",
       R"({"choices":[{"delta":{"content":"\"finish_reason\":\"abort\""},"finish_reason":null}]})"})
    EXPECT_EQ(rewriter.need(fine, false), Need::kNothing) << fine;
  rules.api = Api::kOther;  // not known to mean that
  EXPECT_EQ(ReplyRewriter(rules).need(R"({"finish_reason":"abort"})", true), Need::kNothing);
}

}  // namespace
}  // namespace tandem::router
