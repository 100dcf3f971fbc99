#include "router/prompt_prefix.h"

#include <numeric>

#include <gtest/gtest.h>

#include "protocol/kv_events.h"
#include "router/kv_feeds.h"
#include "text/byte_tokenizer.h"

namespace tandem::router {
namespace {

constexpr int32_t kBlock = 4;

PrefixRule rule_of(std::vector<int32_t> sizes) {
  return {.hasher = PrefixHasher(7), .model = "m", .block_tokens = std::move(sizes)};
}

PromptPrefix prefix_of(const PrefixRule& rule, Api api, const std::string& body,
                       std::optional<api::Endpoint> endpoint = std::nullopt) {
  const auto facts = read_facts(api, body);
  EXPECT_TRUE(facts);
  return prefix_of_body(rule, endpoint, body, *facts);
}

std::string ids_text(std::span<const int32_t> ids) {
  std::string text = "[";
  for (const int32_t id : ids) text += (text.size() > 1 ? "," : "") + std::to_string(id);
  return text + "]";
}

TEST(PromptPrefix, PromptsOfIdsAreKnownByTheirTokensInEveryBlockSize) {
  std::vector<int32_t> ids(20);
  std::iota(ids.begin(), ids.end(), 100);
  const PrefixRule rule = rule_of({kBlock, 2 * kBlock});
  const PromptPrefix expected = prefix_of_tokens(rule, ids, "");
  ASSERT_EQ(expected.kinds.size(), 2U);
  EXPECT_EQ(expected.kinds[0].keys.size(), 5U);
  EXPECT_EQ(expected.kinds[1].keys.size(), 2U);
  EXPECT_FALSE(expected.of_bytes());
  const auto same = [&](Api api, const std::string& body) {
    const PromptPrefix found = prefix_of(rule, api, body);
    return found.kinds.size() == 2 && found.kinds[0].keys == expected.kinds[0].keys &&
           found.kinds[1].keys == expected.kinds[1].keys;
  };
  EXPECT_TRUE(same(Api::kCompletions, R"({"prompt":)" + ids_text(ids) + "}"));
  EXPECT_TRUE(same(Api::kCompletions, R"({"prompt":[)" + ids_text(ids) + ",[1,2]]}"));
  EXPECT_TRUE(same(Api::kGenerate, R"({"input_ids":)" + ids_text(ids) + "}"));
  EXPECT_FALSE(
      same(Api::kCompletions, R"({"cache_salt":"tenant","prompt":)" + ids_text(ids) + "}"));
}

TEST(PromptPrefix, TextIsKnownByItsBytesUntilThereIsATokenizerAndABlockSize) {
  const std::string words(9000, 'w');
  const std::string body = R"({"messages":[{"role":"user","content":")" + words + "\"}]}";
  const auto chat = api::Endpoint::kChatCompletions;
  PrefixRule rule = rule_of({kBlock});
  EXPECT_TRUE(prefix_of(rule, Api::kChat, body, chat).of_bytes());
  EXPECT_EQ(prefix_of(rule, Api::kChat, body, chat).chain().size(), 9000U / 2048);
  const auto spec = text::byte_tokenizer_spec();
  rule.tokenizer = text::Tokenizer::create(spec).value();
  rule.chat_template = std::make_shared<const text::ChatTemplate>(
      text::ChatTemplate::parse(spec.chat_template, spec.tool_template).value());
  const PromptPrefix exact = prefix_of(rule, Api::kChat, body, chat);
  EXPECT_FALSE(exact.of_bytes());
  EXPECT_GE(exact.chain().size(), 9000U / kBlock);
  rule.block_tokens.clear();
  EXPECT_TRUE(prefix_of(rule, Api::kChat, body, chat).of_bytes());
  // What the tokenizer's side cannot read is still known by its bytes.
  rule.block_tokens = {kBlock};
  const std::string media = R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
                            R"("image_url":{"url":"x"}}]}],"pad":")" +
                            words + "\"}";
  EXPECT_TRUE(prefix_of(rule, Api::kChat, media, chat).of_bytes());
}

TEST(PromptPrefix, TellsWhatItsChainDoesNot) {
  const PrefixRule bytes = rule_of({});
  const auto prompt = [](size_t size) {
    return R"({"messages":[{"role":"user","content":")" + std::string(size, 'x') + R"("}]})";
  };
  const auto beyond = [&](size_t size, int64_t tokens) {
    return prefix_of(bytes, Api::kChat, prompt(size), api::Endpoint::kChatCompletions)
        .beyond_chain(tokens);
  };
  EXPECT_EQ(beyond(1000, 250), 250) << "no whole chunk";
  EXPECT_EQ(beyond(9000, 2250), 0) << "four chunks, and less than one";
  EXPECT_EQ(beyond(9000, 2048 + 512), 512);
  EXPECT_EQ(beyond(800'000, 200'000), 200'000 - 64 * 512) << "as many chunks as there may be";
  const PromptPrefix exact = prefix_of_tokens(rule_of({kBlock}), std::vector<int32_t>(20, 1), "");
  const auto whole = static_cast<int64_t>(exact.chain().size()) * kBlock;
  EXPECT_EQ(exact.beyond_chain(whole + kBlock - 1), 0);
  EXPECT_EQ(exact.beyond_chain(whole + 300), 300) << "the others of a batch";
  EXPECT_EQ(exact.beyond_chain(0), 0);
}

TEST(PromptPrefix, AdaptersHaveCachesOfTheirOwn) {
  const std::vector<int32_t> ids(8, 1);
  PrefixRule rule = rule_of({kBlock});
  const auto plain = prefix_of_tokens(rule, ids, "");
  rule.adapter = "french";
  EXPECT_NE(prefix_of_tokens(rule, ids, "").kinds[0].keys, plain.kinds[0].keys);
}

TEST(KvSource, AnAddressThatWasBoundToAnyInterfaceIsTheWorkersHost) {
  const KvSource both = parse_kv_source("tcp://*:5557,tcp://0.0.0.0:5600", "10.0.0.7");
  EXPECT_EQ(both.endpoint, "tcp://10.0.0.7:5557");
  EXPECT_EQ(both.replay_endpoint, "tcp://10.0.0.7:5600");
  EXPECT_EQ(parse_kv_source("tcp://[::]:1", "fe80::1").endpoint, "tcp://[fe80::1]:1");
  EXPECT_EQ(parse_kv_source("tcp://1.2.3.4:5", "h").endpoint, "tcp://1.2.3.4:5");
  EXPECT_EQ(parse_kv_source("ipc:///run/kv", "h").endpoint, "ipc:///run/kv");
  EXPECT_EQ(parse_kv_source("", "h").endpoint, "");
}

}  // namespace
}  // namespace tandem::router
