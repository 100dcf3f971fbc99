// Data-parallel ranks, TensorRT-LLM's generation first, slow readers and ready-made answers.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "mock/mock_fixture.h"

namespace tandem::mock {
namespace {

std::string ranks(const MockServer& server) { return server.state().find("ranks")->dump(); }

std::string room_fields(const MockServer& prefill, int room) {
  return R"("bootstrap_host":"127.0.0.1","bootstrap_port":)" +
         std::to_string(prefill.bootstrap_port()) + R"(,"bootstrap_room":)" + std::to_string(room);
}

TEST_F(MockTest, ARoomsNumberChoosesThePrefillRank) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill, {.dp_size = 4});
  const auto decode = server(Dialect::kSglang, Role::kDecode, {.dp_size = 4});
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string body = "{" + kMessages + "," + room_fields(p, 4 * 1000 + 3) + "}";
    const auto [first, second] = co_await t->both(p, body, d, body, kChat);
    EXPECT_EQ(first.status, 200);
    EXPECT_EQ(second.status, 200) << second.body;
    EXPECT_EQ(ranks(p), "[0,0,0,1]");
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, ARoutedRankMustBeTheOneThatDecodeIsTold) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill, {.dp_size = 2});
  const auto decode = server(Dialect::kSglang, Role::kDecode, {.dp_size = 2});
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    // Room 8 would be rank 0's.
    const std::string prefix = "{" + kMessages + "," + room_fields(p, 8) + R"(,"routed_dp_rank":1)";
    const std::string told = prefix + R"(,"disagg_prefill_dp_rank":1})";
    const auto [first, second] = co_await t->both(p, prefix + "}", d, told, kChat);
    EXPECT_EQ(first.status, 200);
    EXPECT_EQ(second.status, 200) << second.body;
    EXPECT_EQ(ranks(p), "[0,1]");
    EXPECT_EQ(ranks(d), "[0,1]");
    const auto wrong = co_await t->post(p, kChat, "{" + kMessages + R"(,"routed_dp_rank":2})");
    EXPECT_EQ(wrong->status, 400);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, DecodeThatAsksAnotherRankFindsNoRoom) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill,
                              {.partner_timeout = std::chrono::milliseconds(300), .dp_size = 2});
  const auto decode = server(Dialect::kSglang, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string prefix = "{" + kMessages + "," + room_fields(p, 8) + R"(,"routed_dp_rank":1)";
    const auto [first, second] = co_await t->both(
        p, prefix + "}", d, "{" + kMessages + "," + room_fields(p, 8) + "}", kChat);
    EXPECT_EQ(first.status, 500);
    EXPECT_EQ(second.status, 500);
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, AHeaderPinsVllmsRankAndEachRankIsAnEngineOfItsOwn) {
  const auto prefill = server(Dialect::kVllmNixl, Role::kPrefill, {.dp_size = 2});
  const auto decode = server(Dialect::kVllmNixl, Role::kDecode);
  run([](MockTest* t, MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string ask =
        "{" + kMessages + R"(,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}})";
    const auto first = co_await t->post(p, kChat, ask, {{"X-data-parallel-rank", "1"}});
    const JsonValue params = *parse_json(first->body)->find("kv_transfer_params");
    EXPECT_TRUE(params.find("remote_engine_id")->as_string().ends_with("_dp1"));
    EXPECT_EQ(ranks(p), "[0,1]");
    const auto second = co_await t->post(
        d, kChat, "{" + kMessages + R"(,"kv_transfer_params":)" + params.dump() + "}");
    EXPECT_EQ(second->status, 200) << second->body;
    EXPECT_EQ((co_await t->post(p, kChat, ask, {{"X-data-parallel-rank", "7"}}))->status, 400);
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, GenerationFirstContextWaitsForItsGeneration) {
  const auto context = server(Dialect::kTrtllm, Role::kPrefill);
  const auto generation = server(Dialect::kTrtllm, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    constexpr const char* kId = "9007199254740993";
    const std::string ids = std::string(R"("disagg_request_id":)") + kId + R"(,"schedule_style":1)";
    const std::string first =
        "{" + kMessages + R"(,"disaggregated_params":{"request_type":"context_only",)" + ids + "}}";
    const std::string second =
        "{" + kMessages +
        R"(,"max_tokens":4,"disaggregated_params":{"request_type":"generation_only",)" + ids +
        R"(,"ctx_request_id":)" + kId + R"(,"ctx_dp_rank":0,"ctx_info_endpoint":"127.0.0.1:)" +
        std::to_string(p.bootstrap_port()) + R"("}})";
    const auto [early, late] = co_await t->both(p, first, d, second, kChat);
    EXPECT_EQ(early.status, 200);
    EXPECT_EQ(late.status, 200) << late.body;
    EXPECT_NE(early.body.find(R"("completion_tokens":1,)"), std::string::npos) << early.body;
    expect_clean(p);
    const auto twice = co_await t->post(
        p, kChat,
        "{" + kMessages + R"(,"n":2,"disaggregated_params":{"request_type":"context_only",)" + ids +
            "}}");
    EXPECT_EQ(twice->status, 400);
    const auto nameless = co_await t->post(
        p, kChat,
        "{" + kMessages +
            R"(,"disaggregated_params":{"request_type":"context_only","schedule_style":1}})");
    EXPECT_EQ(nameless->status, 400);
  }(this, *context, *generation));
}

TEST_F(MockTest, ASlowReaderTakesItsTime) {
  const auto one = server(Dialect::kOpenai, Role::kUnified);
  run([](MockTest* t, const MockServer& a) -> awaitable<void> {
    const std::string body =
        R"({"messages":[{"role":"user","content":")" + std::string(1 << 20, 'x') + R"("}]})";
    const auto took = [&](const char* fault) -> awaitable<Duration> {
      const TimePoint begin = std::chrono::steady_clock::now();
      const auto reply = co_await t->post(a, kChat, body, {{"x-mock-fault", fault}});
      EXPECT_EQ(reply ? reply->status : 0, 200);
      co_return std::chrono::steady_clock::now() - begin;
    };
    EXPECT_GE(co_await took("slow-read"), std::chrono::milliseconds(400));
    EXPECT_GE(co_await took("unified:slow-read"), std::chrono::milliseconds(400));
    EXPECT_LT(co_await took("decode:slow-read"), std::chrono::milliseconds(400));
  }(this, *one));
}

TEST_F(MockTest, AStaticServerAnswersWithoutReading) {
  const auto decode =
      server(Dialect::kSglang, Role::kDecode, {.reply_tokens = 5, .is_static = true});
  const auto prefill = server(Dialect::kVllmNixl, Role::kPrefill, {.is_static = true});
  run([](MockTest* t, const MockServer& d, const MockServer& p) -> awaitable<void> {
    const auto stream = co_await t->post(d, kChat, R"({"nothing here":1,"stream":true})");
    EXPECT_EQ(stream->status, 200);
    size_t chunks = 0;
    for (size_t at = 0; (at = stream->body.find("\"tick ", at)) != std::string::npos; ++at) {
      ++chunks;
      EXPECT_NE(stream->body.substr(at + 6, 19), std::string(19, '0'));
    }
    EXPECT_EQ(chunks, 5U);
    EXPECT_TRUE(stream->body.ends_with("data: [DONE]\n\n"));
    const auto whole = co_await t->post(p, kChat, R"({"stream":true})");
    EXPECT_NE(whole->body.find("remote_block_ids"), std::string::npos) << whole->body;
    EXPECT_EQ(count(d.state(), "running"), 0);
  }(this, *decode, *prefill));
}

TEST_F(MockTest, RequestsAreToldAsTheyCame) {
  const auto one = server(Dialect::kOpenai, Role::kUnified, {.record = 2});
  run([](MockTest* t, const MockServer& a, net::HttpClient& client) -> awaitable<void> {
    for (const char* text : {"first", "second", "third"}) {
      (void)co_await t->post(
          a, kChat, std::string(R"({"messages":[{"content":")") + text + R"("}],"x":1e400})",
          {{"X-Kept", text}});
    }
    net::ClientRequest ask;
    ask.host = "127.0.0.1";
    ask.port = a.port();
    ask.target = "/mock/requests";
    const auto told = co_await net::fetch(client, std::move(ask));
    const JsonValue all = *parse_json(told->body)->find("requests");
    EXPECT_EQ(all.items().size(), 2U);
    EXPECT_EQ(all.items()[1].find("body")->as_string(),
              R"({"messages":[{"content":"third"}],"x":1e400})");
    EXPECT_EQ(all.items()[0].find("headers")->find("X-Kept")->as_string(), "second");
  }(this, *one, client_));
}

}  // namespace
}  // namespace tandem::mock
