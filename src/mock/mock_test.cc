#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "mock/mock_fixture.h"
#include "net/sse.h"

namespace tandem::mock {
namespace {

TEST_F(MockTest, TheTextDependsOnThePromptAlone) {
  const auto one = server(Dialect::kOpenai, Role::kUnified);
  const auto other = server(Dialect::kSglang, Role::kUnified);
  run([](MockTest* t, const MockServer& a, const MockServer& b) -> awaitable<void> {
    const auto first = co_await t->post(a, kChat, "{" + kMessages + "}");
    const auto second = co_await t->post(b, kChat, "{" + kMessages + "}");
    const auto third =
        co_await t->post(a, kChat, R"({"messages":[{"role":"user","content":"else"}]})");
    EXPECT_EQ(content(first->body), content(second->body));
    EXPECT_NE(content(first->body), content(third->body));
  }(this, *one, *other));
}

TEST_F(MockTest, ARepeatedPromptIsCachedAndUsageSaysSo) {
  const auto one = server(Dialect::kSglang, Role::kUnified);
  run([](MockTest* t, const MockServer& a) -> awaitable<void> {
    const std::string body =
        R"({"messages":[{"role":"user","content":")" + std::string(400, 'x') + R"("}]})";
    const auto cold = co_await t->post(a, kChat, body);
    const auto warm = co_await t->post(a, kChat, body);
    EXPECT_NE(cold->body.find(R"("prompt_tokens_details":null)"), std::string::npos);
    EXPECT_NE(warm->body.find(R"("cached_tokens":96)"), std::string::npos) << warm->body;
    EXPECT_EQ(content(cold->body), content(warm->body));
  }(this, *one));
}

TEST_F(MockTest, SglangLegsMeetInTheirRoom) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill);
  const auto decode = server(Dialect::kSglang, Role::kDecode);
  const auto whole = server(Dialect::kSglang, Role::kUnified);
  run([](MockTest* t, const MockServer& p, const MockServer& d,
         const MockServer& u) -> awaitable<void> {
    const std::string room = R"("bootstrap_host":"127.0.0.1","bootstrap_port":)" +
                             std::to_string(p.bootstrap_port()) +
                             R"(,"bootstrap_room":9007199254740993)";
    const std::string body = "{" + kMessages + "," + room + "}";
    const auto [first, second] = co_await t->both(p, body, d, body, kChat);
    const auto alone = co_await t->post(u, kChat, "{" + kMessages + "}");
    EXPECT_EQ(first.status, 200);
    EXPECT_EQ(content(second.body), content(alone->body));
    const auto roomless = co_await t->post(p, kChat, "{" + kMessages + "}");
    EXPECT_EQ(roomless->status, 500);
    expect_clean(p);
    expect_clean(d);
    EXPECT_EQ(count(p.state(), "taken"), 1);
  }(this, *prefill, *decode, *whole));
}

TEST_F(MockTest, ABatchNeedsARoomForEachOfItsRequests) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill);
  const auto decode = server(Dialect::kSglang, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string port = std::to_string(p.bootstrap_port());
    const std::string text = R"("text":["one prompt here","and another one"])";
    const std::string good = "{" + text +
                             R"(,"bootstrap_host":["127.0.0.1","127.0.0.1"],"bootstrap_port":[)" +
                             port + "," + port + R"(],"bootstrap_room":[7,8]})";
    const auto [first, second] = co_await t->both(p, good, d, good, "/generate");
    EXPECT_EQ(first.status, 200);
    EXPECT_EQ(parse_json(second.body)->items().size(), 2U);
    const std::string bad = "{" + text + R"(,"bootstrap_host":"127.0.0.1","bootstrap_port":)" +
                            port + R"(,"bootstrap_room":9})";
    const auto refused = co_await t->post(d, "/generate", bad);
    EXPECT_EQ(refused->status, 400);
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, NixlBlocksAreFetchedOnceAndOnlyFromTheEngineThatWroteThem) {
  const auto prefill = server(Dialect::kVllmNixl, Role::kPrefill);
  const auto decode = server(Dialect::kVllmNixl, Role::kDecode);
  run([](MockTest* t, MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string ask =
        "{" + kMessages +
        R"(,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}})";
    const auto first = co_await t->post(p, kChat, ask);
    const auto json = parse_json(first->body);
    const std::string params = json->find("kv_transfer_params")->dump();
    const std::string next = "{" + kMessages + R"(,"kv_transfer_params":)" + params + "}";
    const auto second = co_await t->post(d, kChat, next);
    EXPECT_EQ(second->status, 200) << second->body;
    // Decode counts what was transferred as a hit, like the real one.
    const auto prompt =
        parse_json(second->body)->find("usage")->find("prompt_tokens")->as_integer();
    EXPECT_NE(second->body.find("\"cached_tokens\":" + std::to_string(*prompt - 1)),
              std::string::npos);
    const auto again = co_await t->post(p, kChat, ask);
    const std::string stale = parse_json(again->body)->find("kv_transfer_params")->dump();
    p.restart();
    const auto late =
        co_await t->post(d, kChat, "{" + kMessages + R"(,"kv_transfer_params":)" + stale + "}");
    EXPECT_EQ(late->status, 500);
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, ALeaseRunsOutAndIsCounted) {
  const auto prefill =
      server(Dialect::kVllmNixl, Role::kPrefill, {.lease = std::chrono::milliseconds(50)});
  run([](MockTest* t, const MockServer& p, net::Reactor& reactor) -> awaitable<void> {
    (void)co_await t->post(p, kChat,
                           "{" + kMessages + R"(,"kv_transfer_params":{"do_remote_decode":true}})");
    EXPECT_EQ(count(p.state(), "open"), 1);
    for (int i = 0; i < 200 && count(p.state(), "open") != 0; ++i)
      co_await reactor.sleep(std::chrono::milliseconds(10));
    EXPECT_EQ(count(p.state(), "expired"), 1);
  }(this, *prefill, reactor_));
}

TEST_F(MockTest, APushGoesToTheDecodeRequestOfTheSameId) {
  const auto prefill =
      server(Dialect::kVllmNixlPush, Role::kPrefill, {.speed = {.prefill_rate = 600}});
  const auto decode =
      server(Dialect::kVllmNixlPush, Role::kDecode, {.partner_timeout = std::chrono::seconds(5)});
  const auto hasty = server(Dialect::kVllmNixlPush, Role::kDecode,
                            {.partner_timeout = std::chrono::milliseconds(300)});
  run([](MockTest* t, const MockServer& p, const MockServer& d,
         const MockServer& h) -> awaitable<void> {
    const std::string ask =
        "{" + kMessages + R"(,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}})";
    const std::string engine = p.state().find("engine_id")->as_string();
    const std::string there =
        "{" + kMessages +
        R"(,"kv_transfer_params":{"do_remote_prefill":true,"remote_request_id":"r1","remote_engine_id":")" +
        engine + R"(","remote_host":"127.0.0.1","remote_port":)" +
        std::to_string(p.bootstrap_port()) + "}}";
    const auto [first, second] =
        co_await t->both(p, ask, d, there, kChat, {{"X-Request-Id", "r1"}});
    EXPECT_EQ(first.status, 200);
    EXPECT_NE(first.body.find(R"("transfer_mode":"push")"), std::string::npos);
    EXPECT_EQ(second.status, 200) << second.body;
    // The blocks wait for a decode request that comes later, but not for one of another name.
    EXPECT_EQ((co_await t->post(p, kChat, ask, {{"X-Request-Id", "r2"}}))->status, 200);
    EXPECT_EQ((co_await t->post(h, kChat, there, {{"X-Request-Id", "r4"}}))->status, 500);
    EXPECT_EQ((co_await t->post(d, kChat, there, {{"X-Request-Id", "r2"}}))->status, 200);
    expect_clean(p);
  }(this, *prefill, *decode, *hasty));
}

TEST_F(MockTest, MooncakeMeetsOnTheTransferId) {
  const auto prefill = server(Dialect::kVllmMooncake, Role::kPrefill);
  const auto decode = server(Dialect::kVllmMooncake, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string first =
        "{" + kMessages +
        R"(,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-1"}})";
    const std::string second =
        "{" + kMessages +
        R"(,"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-1","remote_bootstrap_addr":"http://127.0.0.1:)" +
        std::to_string(p.bootstrap_port()) + R"("}})";
    const auto [early, late] = co_await t->both(p, first, d, second, kChat);
    EXPECT_EQ(early.status, 200);
    EXPECT_EQ(late.status, 200) << late.body;
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, TensorRtIdsKeepAllTheirDigits) {
  const auto prefill = server(Dialect::kTrtllm, Role::kPrefill);
  const auto decode = server(Dialect::kTrtllm, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string ask =
        R"({"prompt":"tell me","max_tokens":1,"disaggregated_params":{"request_type":"context_only","disagg_request_id":9007199254740993}})";
    const auto first = co_await t->post(p, "/v1/completions", ask);
    const auto json = parse_json(first->body);
    JsonValue params = *json->find("choices")->items()[0].find("disaggregated_params");
    EXPECT_EQ(params.find("ctx_request_id")->as_string(), "9007199254740993");
    params.set("request_type", JsonValue::string("generation_only"));
    JsonValue next = JsonValue::object();
    next.set("prompt_token_ids", *json->find("prompt_token_ids"));
    next.set("disaggregated_params", params);
    const auto second = co_await t->post(d, "/v1/completions", next.dump());
    EXPECT_EQ(second->status, 200) << second->body;
    const auto small = co_await t->post(
        p, "/v1/completions",
        R"({"prompt":"x","disaggregated_params":{"request_type":"context_only","disagg_request_id":12}})");
    EXPECT_EQ(small->status, 400);
    expect_clean(p);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, AClientThatLeavesEndsItsRoomAndItsPartnersWait) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill);
  const auto decode = server(Dialect::kSglang, Role::kDecode);
  run([](MockTest* t, const MockServer& p, const MockServer& d, net::Reactor& reactor,
         net::HttpClient& client) -> awaitable<void> {
    const std::string room = R"("bootstrap_host":"127.0.0.1","bootstrap_port":)" +
                             std::to_string(p.bootstrap_port()) + R"(,"bootstrap_room":5)";
    for (const MockServer* to : {&p, &d}) {
      // The other leg never comes: both hang, as the real ones do, until somebody cuts them.
      net::ClientRequest request;
      request.method = "POST";
      request.host = "127.0.0.1";
      request.port = to->port();
      request.target = kChat;
      request.body =
          "{" + kMessages + "," +
          (to == &p ? room
                    : R"("bootstrap_host":"127.0.0.1","bootstrap_port":)" +
                          std::to_string(p.bootstrap_port()) + R"(,"bootstrap_room":6)") +
          "}";
      auto call = client.call(
          std::move(request),
          {std::chrono::seconds(2), std::chrono::milliseconds(100), std::chrono::seconds(1)});
      EXPECT_FALSE(co_await call->head());
      call->cancel();
    }
    for (int i = 0; i < 300 && (count(p.state(), "open") + count(p.state(), "waiting") +
                                count(d.state(), "running")) != 0;
         ++i)
      co_await reactor.sleep(std::chrono::milliseconds(10));
    expect_clean(p);
    expect_clean(d);
    EXPECT_EQ(count(p.state(), "aborted"), 1);
    (void)t;
  }(this, *prefill, *decode, reactor_, client_));
}

TEST_F(MockTest, AnAbortedTransferFailsBothLegs) {
  const auto prefill = server(Dialect::kSglang, Role::kPrefill, {.speed = {.prefill_rate = 60}});
  const auto decode = server(Dialect::kSglang, Role::kDecode);
  prefill->set_faults({*parse_fault("abort-transfer#1")});
  run([](MockTest* t, const MockServer& p, const MockServer& d) -> awaitable<void> {
    const std::string body = "{" + kMessages +
                             R"(,"bootstrap_host":"127.0.0.1","bootstrap_port":)" +
                             std::to_string(p.bootstrap_port()) + R"(,"bootstrap_room":11})";
    const auto [first, second] = co_await t->both(p, body, d, body, kChat);
    EXPECT_EQ(first.status, 500);
    EXPECT_EQ(second.status, 500);
    expect_clean(p);
    expect_clean(d);
  }(this, *prefill, *decode));
}

TEST_F(MockTest, StreamsAreTheSameTextInAnyPieces) {
  const auto whole = server(Dialect::kOpenai, Role::kUnified);
  const auto bytes = server(Dialect::kOpenai, Role::kUnified, {.piece = 1});
  run([](MockTest* t, const MockServer& a, const MockServer& b) -> awaitable<void> {
    const auto plain = co_await t->post(a, kChat, "{" + kMessages + "}");
    const auto cut = co_await t->post(
        b, kChat, "{" + kMessages + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    net::SseFramer framer;
    EXPECT_TRUE(framer.feed(cut->body));
    std::string text;
    bool done = false;
    bool usage = false;
    while (const auto frame = framer.next()) {
      done = frame->done();
      const auto json = parse_json(frame->data);
      if (!json) continue;
      usage = usage || json->find("usage") != nullptr;
      for (const JsonValue& choice : json->find("choices")->items()) {
        if (const JsonValue* piece = choice.find("delta")->find("content"))
          text += piece->as_string();
      }
    }
    EXPECT_TRUE(done);
    EXPECT_TRUE(usage);
    EXPECT_EQ(text, content(plain->body));
  }(this, *whole, *bytes));
}

TEST_F(MockTest, EveryFaultIsSeenByTheClient) {
  const auto one = server(Dialect::kOpenai, Role::kUnified);
  run([](MockTest* t, const MockServer& a) -> awaitable<void> {
    const auto with = [&](const char* fault, const char* stream) {
      return t->post(a, kChat, "{" + kMessages + stream + "}", {{"x-mock-fault", fault}});
    };
    constexpr const char* kStream = R"(,"stream":true)";
    EXPECT_FALSE(co_await with("refuse", ""));
    EXPECT_EQ((co_await with("status=503", ""))->status, 503);
    EXPECT_FALSE(co_await with("die-after-head", kStream));
    EXPECT_FALSE(co_await with("die-mid-stream", kStream));
    EXPECT_EQ((co_await with("no-done", kStream))->body.find("data: [DONE]\n\n"),
              std::string::npos);
    EXPECT_NE((co_await with("error-frame", kStream))->body.find("mock_fault"), std::string::npos);
    EXPECT_FALSE(parse_json((co_await with("garbage", ""))->body));
    EXPECT_NE((co_await with("wrong-usage", ""))->body.find(R"("completion_tokens":-1)"),
              std::string::npos);
    EXPECT_FALSE((co_await with("truncate", kStream))->body.ends_with("\n\n"));
    expect_clean(a);
  }(this, *one));
}

TEST_F(MockTest, FaultsOfSilenceAndOfGivingUpAreSeenToo) {
  const auto one = server(Dialect::kOpenai, Role::kUnified);
  run([](MockTest* t, const MockServer& a) -> awaitable<void> {
    const auto with = [&](const char* fault, const char* rest, Duration head, Duration patience) {
      return t->post(a, kChat, "{" + kMessages + rest + "}", {{"x-mock-fault", fault}}, head,
                     patience);
    };
    constexpr auto kShort = std::chrono::milliseconds(100);
    constexpr auto kLong = std::chrono::seconds(10);
    EXPECT_EQ((co_await with("stall", "", kShort, kLong)).error().code, "head_timeout");
    EXPECT_EQ((co_await with("stall-mid-stream", R"(,"stream":true)", kLong, kShort)).error().code,
              "body_timeout");
    EXPECT_NE((co_await with("abort", "", kLong, kLong))->body.find(R"("finish_reason":"abort")"),
              std::string::npos);
    const TimePoint begin = std::chrono::steady_clock::now();
    EXPECT_EQ((co_await with("slow", R"(,"max_tokens":20)", kLong, kLong))->status, 200);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
    const std::string before = a.state().find("engine_id")->as_string();
    EXPECT_FALSE(co_await with("restart", "", kLong, kLong));
    EXPECT_NE(a.state().find("engine_id")->as_string(), before);
    // Its clients left a moment ago.
    const TimePoint patience = std::chrono::steady_clock::now() + kLong;
    while ((count(a.state(), "running") != 0 || count(a.state(), "open") != 0 ||
            count(a.state(), "waiting") != 0) &&
           std::chrono::steady_clock::now() < patience)
      co_await t->reactor_.sleep(std::chrono::milliseconds(5));
    expect_clean(a);
  }(this, *one));
}

TEST(MockFaults, AreReadWithTheirLimits) {
  EXPECT_FALSE(parse_fault("nonsense"));
  EXPECT_FALSE(parse_fault("status"));
  EXPECT_FALSE(parse_fault("status=200"));
  EXPECT_FALSE(parse_fault("stall*2"));
  EXPECT_FALSE(parse_fault("stall#x"));
  Faults faults(1);
  faults.set({*parse_fault("status=503#2")});
  EXPECT_EQ(faults.next().status, 503);
  EXPECT_EQ(faults.next().kind, FaultKind::kStatus);
  EXPECT_EQ(faults.next().kind, FaultKind::kNone);
  faults.set({*parse_fault("stall*0.25")});
  int hits = 0;
  for (int i = 0; i < 4000; ++i) hits += faults.next().kind == FaultKind::kStall ? 1 : 0;
  EXPECT_NEAR(hits, 1000, 150);
}

TEST(MockCache, CountsWholeBlocksAndEvictsTheOldest) {
  BlockCache cache(64);
  std::vector<uint32_t> first(49, 1);
  std::vector<uint32_t> second(49, 2);
  EXPECT_EQ(cache.match(first), 0);
  cache.insert(first);
  EXPECT_EQ(cache.match(first), 48);
  cache.insert(second);
  EXPECT_EQ(cache.match(second), 48);
  EXPECT_EQ(cache.match(first), 16) << "leaves go first";
  EXPECT_EQ(cache.blocks(), 4U);
}

}  // namespace
}  // namespace tandem::mock
