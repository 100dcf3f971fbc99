#include "router/terminal.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

constexpr std::string_view kChunk =
    R"({ "id":"x", "choices":[], "big":12345678901234567890, "usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,)"
    R"("prompt_tokens_details":{"cached_tokens":9,"audio":1},"z":{"y":1.50}}, "tandem":{"completion_token_ids":[[1,2,3]]} })";

TEST(Terminal, PairsTellPrefillsPromptAndCachedTokens) {
  const auto edited =
      rewrite_terminal(kChunk, CachedTruth::kPrefill, PrefillReport{12, 5, 100, 2}, {});
  ASSERT_TRUE(edited) << edited.error().message;
  EXPECT_EQ(
      edited->json,
      R"({ "id":"x", "choices":[], "big":12345678901234567890, "usage":{"prompt_tokens":12,"completion_tokens":4,"total_tokens":16,)"
      R"("prompt_tokens_details":{"cached_tokens":5,"audio":1},"z":{"y":1.50}} })");
  EXPECT_EQ(edited->completion_ids, (std::vector<std::vector<int32_t>>{{1, 2, 3}}));
  EXPECT_EQ(edited->prompt_tokens, 12);
  EXPECT_EQ(edited->cached_tokens, 5);
  EXPECT_EQ(edited->completion_tokens, 4);
}

TEST(Terminal, WithoutPrefillsNumberNoCachedNumberIsTold) {
  const auto edited = rewrite_terminal(kChunk, CachedTruth::kPrefill, std::nullopt, {});
  ASSERT_TRUE(edited);
  const auto json = parse_json(edited->json);
  const JsonValue* const details = json->find("usage")->find("prompt_tokens_details");
  EXPECT_EQ(details->find("cached_tokens"), nullptr);
  EXPECT_NE(details->find("audio"), nullptr);
  EXPECT_EQ(json->find("usage")->find("prompt_tokens")->as_integer(), 10);
}

TEST(Terminal, OneWorkersNumbersStand) {
  const auto edited = rewrite_terminal(kChunk, CachedTruth::kAnswer, std::nullopt, {});
  ASSERT_TRUE(edited);
  EXPECT_EQ(edited->cached_tokens, 9);
  EXPECT_EQ(parse_json(edited->json)->find("usage")->find("total_tokens")->as_integer(), 14);
}

TEST(Terminal, AddsDetailsThatAreMissingOrNull) {
  for (const char* details : {"", R"(,"prompt_tokens_details":null)"}) {
    const std::string text = std::string(R"({"usage":{"prompt_tokens":1,"completion_tokens":1)") +
                             details + R"(},"tandem":{}})";
    const auto edited =
        rewrite_terminal(text, CachedTruth::kPrefill, PrefillReport{3, 0, 0, 0}, {});
    ASSERT_TRUE(edited);
    const auto json = parse_json(edited->json);
    EXPECT_EQ(
        json->find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_integer(), 0);
    EXPECT_EQ(json->find("usage")->find("total_tokens")->as_integer(), 4);
  }
}

TEST(Terminal, AReportReplacesTheInternalObject) {
  JsonValue report = JsonValue::object();
  report.set("kv_bytes", JsonValue::integer(7));
  const auto edited = rewrite_terminal(kChunk, CachedTruth::kAnswer, std::nullopt, report);
  ASSERT_TRUE(edited);
  EXPECT_EQ(parse_json(edited->json)->find("tandem")->dump(), R"({"kv_bytes":7})");
}

TEST(Terminal, NonsenseIsAnErrorNotACrash) {
  for (const char* text :
       {"", "[]", "{}", R"({"tandem":{}})", R"({"usage":{}})", R"({"usage":1,"tandem":{}})",
        R"({"usage":{},"tandem":{"completion_token_ids":[[-1]]}})",
        R"({"usage":{},"tandem":{"completion_token_ids":["a"]}})",
        R"({"usage":{},"tandem":{"completion_token_ids":[["a"]]}})"}) {
    EXPECT_FALSE(rewrite_terminal(text, CachedTruth::kAnswer, std::nullopt, {})) << text;
  }
}

TEST(PrefillReport, IsChecked) {
  const auto good = parse_prefill_report(
      R"({"object":"tandem.prefill","usage":{"prompt_tokens":5,"cached_tokens":2},"kv_bytes":9,"blocks_sent":1})");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->cached_tokens, 2);
  EXPECT_EQ(good->kv_bytes, 9);
  for (const char* bad :
       {"", "{}", R"({"object":"tandem.prefill"})",
        R"({"object":"other","usage":{"prompt_tokens":5,"cached_tokens":2}})",
        R"({"object":"tandem.prefill","usage":{"prompt_tokens":5,"cached_tokens":6}})",
        R"({"object":"tandem.prefill","usage":{"prompt_tokens":0,"cached_tokens":0}})"}) {
    EXPECT_FALSE(parse_prefill_report(bad)) << bad;
  }
}

}  // namespace
}  // namespace tandem::router
