// Streams as the engines' mocks send them, cut at every byte on their way through the framer and
// the rewriter: the client gets the same bytes whatever the cut, the true counts, and everything
// that is not a count as it was.
#include <gtest/gtest.h>

#include "mock/reply.h"
#include "net/sse.h"
#include "router/usage/reply_rewriter.h"

namespace tandem::router {
namespace {

struct Case {
  Api api;
  mock::Api mock_api;
  mock::Dialect dialect;
  std::string_view body;
};
constexpr Case kCases[] = {
    {Api::kChat, mock::Api::kChat, mock::Dialect::kVllmNixl,
     R"({"messages":[{"role":"user","content":"q"}],"stream_options":{"include_usage":true}})"},
    {Api::kChat, mock::Api::kChat, mock::Dialect::kSglang,
     R"({"messages":[{"role":"user","content":"q"}],"n":2,"stream_options":{"include_usage":true}})"},
    {Api::kCompletions, mock::Api::kCompletions, mock::Dialect::kTrtllm,
     R"({"prompt":"q","stream_options":{"include_usage":true}})"},
    {Api::kCompletions, mock::Api::kCompletions, mock::Dialect::kVllmMooncake, R"({"prompt":"q"})"},
    {Api::kResponses, mock::Api::kResponses, mock::Dialect::kVllmNixl, R"({"input":"q"})"},
    {Api::kMessages, mock::Api::kMessages, mock::Dialect::kVllmNixl,
     R"({"messages":[{"role":"user","content":"q"}]})"},
    {Api::kGenerate, mock::Api::kGenerate, mock::Dialect::kSglang,
     R"({"input_ids":[[1,2],[3]],"sampling_params":{"max_new_tokens":3}})"},
};

constexpr int64_t kPrompt = 40;
constexpr int64_t kCached = 16;

std::string stream_of(const Case& made) {
  mock::MockOptions options;
  options.dialect = made.dialect;
  options.role = mock::Role::kDecode;
  options.reply_tokens = 3;
  auto request = mock::read_request(made.mock_api, made.body);
  EXPECT_TRUE(request);
  mock::ReplyPlan plan{"id-1", 1700000000, {}, kPrompt - 1, false};
  for (size_t i = 0; i < request->prompts.size(); ++i)
    plan.facts.push_back({1234 + i, kPrompt, kPrompt - 1});
  const mock::Reply reply(options, *request, plan);
  std::string out = reply.opening();
  for (size_t i = 0; i < reply.steps(); ++i) out += reply.step(i);
  out += reply.closing();
  if (made.api != Api::kResponses && made.api != Api::kMessages) out += "data: [DONE]\n\n";
  return out;
}

PromptTruth truth_of(Api api) {
  PromptTruth truth;
  truth.counts = {kPrompt, kCached, std::nullopt};
  if (api == Api::kGenerate) truth.parts = {truth.counts, truth.counts};
  return truth;
}

struct Relayed {
  std::string bytes;
  int parsed = 0;
  ToldUsage told;
};

Relayed relayed(Api api, std::string_view bytes, size_t cut, const PromptTruth& truth) {
  ReplyRules rules;
  rules.api = api;
  rules.pair = true;
  rules.strip = {"kv_transfer_params", "disaggregated_params", "prompt_token_ids"};
  ReplyRewriter rewriter(rules);
  net::SseFramer framer;
  Relayed out;
  const auto pump = [&](std::string_view piece) {
    EXPECT_TRUE(framer.feed(piece));
    while (const auto frame = framer.next()) {
      if (!frame->has_data || rewriter.need(frame->data, false) == ReplyRewriter::Need::kNothing) {
        out.bytes += frame->raw;
        continue;
      }
      ++out.parsed;
      const auto reply = rewriter.rewrite(frame->data, false, &truth);
      ASSERT_TRUE(reply);
      out.bytes += reply->json ? replace_sse_data(frame->raw, *reply->json) : frame->raw;
    }
  };
  pump(bytes.substr(0, cut));
  pump(bytes.substr(cut));
  out.bytes += framer.take_rest();
  out.told = rewriter.told();
  return out;
}

class Streams : public testing::TestWithParam<Case> {};

TEST_P(Streams, TellTheSameTruthAtEverySplit) {
  const std::string bytes = stream_of(GetParam());
  const Api api = GetParam().api;
  const PromptTruth truth = truth_of(api);
  const Relayed whole = relayed(api, bytes, bytes.size(), truth);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    ASSERT_EQ(relayed(api, bytes, cut, truth).bytes, whole.bytes) << cut;
  // Decode's count of transferred KV as a hit is nowhere left, prefill's is where it was.
  const std::string lie = std::to_string(kPrompt - 1);
  for (const char* name : {"\"cached_tokens\":", "\"cache_read_input_tokens\":"}) {
    EXPECT_EQ(whole.bytes.find(name + lie), std::string::npos);
    EXPECT_EQ(bytes.find(name + lie) != std::string::npos,
              whole.bytes.find(name + std::to_string(kCached)) != std::string::npos);
  }
  // Lines differ only where they count.
  size_t changed = 0;
  size_t a = 0;
  size_t b = 0;
  while (a < bytes.size()) {
    const size_t a_end = bytes.find('\n', a);
    const size_t b_end = whole.bytes.find('\n', b);
    ASSERT_NE(b_end, std::string::npos);
    const std::string_view before = std::string_view(bytes).substr(a, a_end - a);
    const std::string_view after = std::string_view(whole.bytes).substr(b, b_end - b);
    if (before != after) {
      ++changed;
      EXPECT_NE(before.find("cache"), std::string_view::npos) << before;
    }
    a = a_end + 1;
    b = b_end + 1;
  }
  EXPECT_EQ(b, whole.bytes.size());
  EXPECT_GE(static_cast<size_t>(whole.parsed), changed);
  if (api == Api::kChat || api == Api::kCompletions) EXPECT_LE(whole.parsed, 1);
}

TEST_P(Streams, SayThatAReplyAloneIsRight) {
  const std::string bytes = stream_of(GetParam());
  ReplyRules rules;
  rules.api = GetParam().api;
  ReplyRewriter rewriter(rules);
  net::SseFramer framer;
  ASSERT_TRUE(framer.feed(bytes));
  while (const auto frame = framer.next()) {
    if (!frame->has_data || rewriter.need(frame->data, false) == ReplyRewriter::Need::kNothing)
      continue;
    const auto reply = rewriter.rewrite(frame->data, false, nullptr);
    ASSERT_TRUE(reply);
    EXPECT_FALSE(reply->json);
  }
  const bool counts =
      bytes.find("usage\":{") != std::string::npos || bytes.find("meta_info") != std::string::npos;
  EXPECT_EQ(rewriter.counted(), counts);
  if (!counts) return;
  EXPECT_EQ(rewriter.told().prompt_tokens,
            GetParam().api == Api::kGenerate ? 2 * kPrompt : kPrompt);
  EXPECT_GT(rewriter.told().completion_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Apis, Streams, testing::ValuesIn(kCases));

// The largest frame that must be rewritten: a Responses reply of eight megabytes.
TEST(LargeEvents, AreRewrittenToo) {
  const std::string text(8 << 20, 'x');
  const std::string json = R"({"type":"response.completed","response":{"output":[{"text":")" +
                           text +
                           R"("}],"usage":{"input_tokens":40,"input_tokens_details":)"
                           R"({"cached_tokens":39},"output_tokens":1,"total_tokens":41}}})";
  const std::string frame = "event: response.completed\ndata: " + json + "\n\n";
  net::SseFramer framer(16U << 20);
  ASSERT_TRUE(framer.feed(frame));
  const auto got = framer.next();
  ASSERT_TRUE(got);
  ReplyRules rules;
  rules.api = Api::kResponses;
  rules.pair = true;
  ReplyRewriter rewriter(rules);
  const PromptTruth truth = truth_of(Api::kResponses);
  const auto reply = rewriter.rewrite(got->data, false, &truth);
  ASSERT_TRUE(reply && reply->json);
  const std::string out = replace_sse_data(got->raw, *reply->json);
  EXPECT_EQ(out.size(), frame.size());
  EXPECT_NE(out.find(R"("cached_tokens":16})"), std::string::npos);
}

}  // namespace
}  // namespace tandem::router
