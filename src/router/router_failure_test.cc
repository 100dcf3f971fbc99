// What happens when a leg, a worker or the client fails.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/reply_text.h"
#include "router/router_fixture.h"

namespace tandem::router {
namespace {

const std::string kStream = R"(,"stream":true,"max_tokens":50)";

awaitable<void> hang(FakeWorker& worker, FakeWorker::Seen&, net::HttpResponder&) {
  co_await worker.client_leaves(5s);
}

FakeWorker::Behaviour refuse(int status, std::string body) {
  return [status, body](FakeWorker&, FakeWorker::Seen&,
                        net::HttpResponder& responder) -> awaitable<void> {
    co_await responder.send(status, {{"Content-Type", "application/json"}}, body);
  };
}

// Streams three pieces, then waits for its client to leave.
awaitable<void> begin_and_hang(FakeWorker& worker, FakeWorker::Seen&,
                               net::HttpResponder& responder) {
  co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
  for (const char* text : {"a", "b", "c"}) {
    co_await responder.write(
        sse_frame(R"({"choices":[{"index":0,"delta":{"content":")" + std::string(text) + "\"}}]}"));
  }
  co_await worker.client_leaves(5s);
}

double seconds_since(TimePoint begin) {
  return to_seconds(std::chrono::steady_clock::now() - begin);
}

TEST_F(RouterTest, PrefillsRefusalIsTheClientsAnswerWordForWordAndDecodeIsCancelledAtOnce) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    const std::string words =
        R"({"error":{"message":"no  such thing","type":"invalid_request_error","param":"x","code":"weird"},"y":1.0})";
    p[0]->behaviour = refuse(400, words);
    d[0]->behaviour = hang;
    const TimePoint begin = std::chrono::steady_clock::now();
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(response.body, words);
    EXPECT_LT(seconds_since(begin), 0.2);
    EXPECT_TRUE(co_await until([&] { return d[0]->disconnects == 1; }, 100ms))
        << "decode must not wait for a handoff that never comes";
    EXPECT_EQ(p[0]->seen.size(), 1U) << "a refusal is not repeated";
  });
}

TEST_F(RouterTest, DecodesRefusalIsTheClientsAnswerAndPrefillIsCancelled) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = refuse(422, R"({"error":{"message":"no","code":"bad"}})");
    p[0]->behaviour = hang;
    const auto response = co_await ask(chat("hello"));
    EXPECT_EQ(response.status, 422);
    EXPECT_TRUE(co_await until([&] { return p[0]->disconnects == 1; }, 100ms));
  });
}

TEST_F(RouterTest, DecodeKilledBeforeTheFirstByteAnotherDialsTheSameHandoff) {
  run(1, 2, 0, [this]() -> awaitable<void> {
    p[0]->delay = 300ms;  // prefill is still at work, and keeps the blocks
    for (auto& worker : d) worker->behaviour = hang;
    bool done = false;
    net::WholeResponse response;
    reactor.spawn([](RouterTest* self, net::WholeResponse& to, bool& flag,
                     std::function<awaitable<net::WholeResponse>()> asking) -> awaitable<void> {
      (void)self;
      to = co_await asking();
      flag = true;
    }(this, response, done, [this] { return ask(chat("hello", kStream)); }));
    co_await until([&] { return d[0]->seen.size() + d[1]->seen.size() == 1; });
    FakeWorker& chosen = d[0]->seen.empty() ? *d[1] : *d[0];
    FakeWorker& other = d[0]->seen.empty() ? *d[0] : *d[1];
    other.behaviour = &FakeWorker::answer;
    co_await reactor.sleep(20ms);
    chosen.kill();
    EXPECT_TRUE(co_await until([&] { return done; }));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, FakeWorker::text_frames() + "data: [DONE]\n\n") << "the whole answer";
    EXPECT_EQ(p[0]->seen.size(), 1U) << "prefill is not repeated";
    EXPECT_EQ(other.seen.size(), 1U);
    EXPECT_EQ(other.seen[0].handoff().find("id")->as_string(),
              chosen.seen[0].handoff().find("id")->as_string());
    EXPECT_EQ(number(other.seen[0].handoff(), {"attempt"}), 2);
  });
}

TEST_F(RouterTest, ARoleChunkIsNotYetAnAnswer) {
  run(1, 2, 0, [this]() -> awaitable<void> {
    p[0]->delay = 300ms;
    const auto role_then_die = [this](FakeWorker& worker, FakeWorker::Seen&,
                                      net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write(
          ": ping\n\ndata: "
          "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
      co_await reactor.sleep(30ms);
      for (auto& other : d) other->behaviour = &FakeWorker::answer;
      (void)worker;
      responder.abort();
    };
    for (auto& worker : d) worker->behaviour = role_then_die;
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.body, FakeWorker::text_frames() + "data: [DONE]\n\n")
        << "one role chunk, one answer";
  });
}

TEST_F(RouterTest, AWholeAnswerThatIsCutIsAskedForAgain) {
  run(0, 0, 2, [this]() -> awaitable<void> {
    const auto cut = [this](FakeWorker&, FakeWorker::Seen&,
                            net::HttpResponder& responder) -> awaitable<void> {
      for (auto& other : u) other->behaviour = &FakeWorker::answer;
      co_await responder.begin_stream(200, {{"Content-Type", "application/json"}});
      co_await responder.write("{\"id\":");
      co_await reactor.sleep(10ms);
      responder.abort();
    };
    for (auto& worker : u) worker->behaviour = cut;
    const auto response = co_await ask(chat("hello"));
    EXPECT_EQ(response.status, 200);
    EXPECT_TRUE(response.body.starts_with("{ \"id\":\"c1\""));
  });
}

TEST_F(RouterTest, DecodeKilledAfterTheFirstByteEndsTheStreamWithAnErrorFrame) {
  run(1, 2, 0, [this]() -> awaitable<void> {
    for (auto& worker : d) worker->behaviour = begin_and_hang;
    const auto call = client->call(request(chat("hello", kStream)));
    EXPECT_TRUE(co_await call->head());
    std::string text;
    while (text.find("\"c\"") == std::string::npos) text += (co_await call->read_some()).value();
    const TimePoint begin = std::chrono::steady_clock::now();
    (d[0]->seen.empty() ? d[1] : d[0])->kill();
    const auto rest = co_await call->read_all(1 << 20);
    EXPECT_TRUE(rest) << "the stream ends properly";
    EXPECT_LT(seconds_since(begin), 0.3);
    EXPECT_TRUE(rest->starts_with("data: {\"error\":{")) << *rest;
    EXPECT_NE(rest->find("decode_failed"), std::string::npos);
    EXPECT_TRUE(rest->ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(d[0]->seen.size() + d[1]->seen.size(), 1U)
        << "nothing is repeated after the first byte";
  });
}

TEST_F(RouterTest, AWorkersOwnErrorFramePassesAndCountsAsABrokenStream) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = [](FakeWorker&, FakeWorker::Seen&,
                         net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write(
          sse_frame(R"({"choices":[{"index":0,"delta":{"content":"x \"error\" y"}}]})"));
      co_await responder.write(sse_frame(R"({"error":{"message":"lost","code":"gone"}})") +
                               "data: [DONE]\n\n");
      co_await responder.finish();
    };
    const auto broken = co_await ask(chat("x", R"(,"stream":true)"));
    EXPECT_NE(broken.body.find(R"("code":"gone")"), std::string::npos);
    EXPECT_EQ(frames(broken.body, "[DONE]"), 1U);
    d[0]->behaviour = &FakeWorker::answer;
    EXPECT_EQ((co_await ask(chat("x", R"(,"stream":true)"))).status, 200);
    EXPECT_NE((co_await get("/metrics")).body.find("tandem_router_broken_streams_total 1\n"),
              std::string::npos);
  });
}

TEST_F(RouterTest, PrefillKilledMidTransferAnotherPairTakesTheWholeRequest) {
  run(2, 1, 0, [this]() -> awaitable<void> {
    for (auto& worker : p) worker->behaviour = hang;
    d[0]->behaviour = hang;
    reactor.spawn([](RouterTest*, std::function<awaitable<void>()> then) -> awaitable<void> {
      co_await then();
    }(this, [this]() -> awaitable<void> {
                    co_await until([&] {
                      return p[0]->seen.size() + p[1]->seen.size() == 1 && d[0]->seen.size() == 1;
                    });
                    FakeWorker& chosen = p[0]->seen.empty() ? *p[1] : *p[0];
                    for (auto& worker : p) worker->behaviour = &FakeWorker::prefill;
                    d[0]->behaviour = &FakeWorker::answer;
                    chosen.kill();
                  }));
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, FakeWorker::text_frames() + "data: [DONE]\n\n");
    EXPECT_EQ(d[0]->seen.size(), 2U);
    EXPECT_NE(d[0]->seen[0].handoff().find("id")->as_string(),
              d[0]->seen[1].handoff().find("id")->as_string())
        << "a new handoff";
    EXPECT_EQ(d[0]->disconnects, 1);
  });
}

TEST_F(RouterTest, PrefillKilledMidTransferWithNoOtherIsAProperErrorWithinASecond) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->behaviour = d[0]->behaviour = hang;
    TimePoint killed;
    reactor.spawn([](std::function<awaitable<void>()> then) -> awaitable<void> {
      co_await then();
    }([this, &killed]() -> awaitable<void> {
                    co_await until(
                        [&] { return p[0]->seen.size() == 1 && d[0]->seen.size() == 1; });
                    killed = std::chrono::steady_clock::now();
                    p[0]->kill();
                  }));
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.headers.get("retry-after"), "1");
    EXPECT_EQ(error_code(response), "prefill_failed");
    EXPECT_LT(seconds_since(killed), 0.5);
    EXPECT_TRUE(co_await until([&] { return d[0]->disconnects == 1; }, 100ms));
    // It comes back; the next request works.
    d[0]->behaviour = &FakeWorker::answer;
    p[0]->behaviour = &FakeWorker::prefill;
    p[0]->restart();
    co_await reactor.sleep(20ms);
    EXPECT_TRUE(co_await until([&] { return router->ready(); }));
    EXPECT_EQ((co_await ask(chat("hello", kStream))).status, 200);
  });
}

TEST_F(RouterTest, PrefillKilledAfterTheFirstByteBreaksADryStreamWithinASecondAndSparesALivelyOne) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->behaviour = hang;
    d[0]->behaviour = begin_and_hang;
    const auto dry = client->call(request(chat("hello", kStream)));
    EXPECT_TRUE(co_await dry->head());
    std::string text;
    while (text.find("\"c\"") == std::string::npos) text += (co_await dry->read_some()).value();
    TimePoint begin = std::chrono::steady_clock::now();
    p[0]->kill();
    const auto rest = co_await dry->read_all(1 << 20);
    EXPECT_TRUE(rest);
    EXPECT_LT(seconds_since(begin), 1.1);
    EXPECT_NE(rest->find("prefill_failed"), std::string::npos);
    EXPECT_TRUE(rest->ends_with("data: [DONE]\n\n"));

    p[0]->restart();
    co_await reactor.sleep(20ms);
    co_await until([&] { return router->ready(); });
    d[0]->behaviour = [this](FakeWorker&, FakeWorker::Seen& seen,
                             net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      const std::string all = FakeWorker::text_frames();
      for (size_t at = 0; at < all.size(); at += 50) {
        co_await responder.write(std::string_view(all).substr(at, 50));
        if (at == 200) p[0]->kill();
        co_await reactor.sleep(50ms);
      }
      co_await responder.write("data: {\"choices\":[]," + d[0]->usage(seen) +
                               "}\n\ndata: [DONE]\n\n");
      co_await responder.finish();
    };
    const auto lively = co_await ask(chat("hello", kStream));
    EXPECT_EQ(lively.body, FakeWorker::text_frames() + "data: [DONE]\n\n");
  });
}

TEST_F(RouterTest, AnErrorAnswerThatOnlyEchoesPrefillsDeathIsNotChargedToDecode) {
  run(2, 1, 0, [this]() -> awaitable<void> {
    for (auto& worker : p) worker->behaviour = hang;
    d[0]->behaviour = [this](FakeWorker&, FakeWorker::Seen&,
                             net::HttpResponder& responder) -> awaitable<void> {
      co_await until([&] { return p[0]->seen.size() + p[1]->seen.size() == 1; });
      FakeWorker& chosen = p[0]->seen.empty() ? *p[1] : *p[0];
      d[0]->behaviour = &FakeWorker::answer;
      for (auto& worker : p) worker->behaviour = &FakeWorker::prefill;
      co_await responder.send(
          502, {}, R"({"error":{"message":"the handoff broke","code":"handoff_failed"}})");
      co_await reactor.sleep(30ms);
      chosen.kill();
    };
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.status, 200) << "the only decode worker is not excluded";
    EXPECT_EQ(d[0]->seen.size(), 2U);
  });
}

TEST_F(RouterTest, AWorkerThatLostItsPeerIsNotTheClientsBadGateway) {
  const std::string lost = R"({"error":{"message":"prefill went away","code":"prefill_lost"}})";
  run(1, 1, 0, [this, lost]() -> awaitable<void> {
    p[0]->behaviour = hang;  // frozen, and health has not noticed yet
    for (const int status : {502, 504}) {
      d[0]->seen.clear();
      d[0]->behaviour = refuse(status, lost);
      const auto response = co_await ask(chat("hello", kStream));
      EXPECT_EQ(response.status, 503);
      EXPECT_EQ(error_code(response), "prefill_failed");
      EXPECT_EQ(response.headers.get("retry-after"), "1");
      EXPECT_EQ(d[0]->seen.size(), 2U) << "it dialed once more";
    }
    d[0]->seen.clear();
    d[0]->behaviour = [this, lost](FakeWorker&, FakeWorker::Seen&,
                                   net::HttpResponder& responder) -> awaitable<void> {
      d[0]->behaviour = &FakeWorker::answer;
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write(sse_frame(lost) + "data: [DONE]\n\n");
      co_await responder.finish();
    };
    const auto again = co_await ask(chat("hello", kStream));
    EXPECT_EQ(again.body, FakeWorker::text_frames() + "data: [DONE]\n\n")
        << "only the connection had broken";
    EXPECT_EQ(d[0]->seen.size(), 2U);
    EXPECT_EQ(number(d[0]->seen[1].handoff(), {"attempt"}), 2);
  });
}

TEST_F(RouterTest, BusyWorkersAreTriedInTurnAndAllBusyIs503) {
  run(1, 3, 0, [this]() -> awaitable<void> {
    const std::string busy = R"({"error":{"message":"full","code":"busy"}})";
    p[0]->delay = 100ms;
    for (auto& worker : d) worker->behaviour = refuse(503, busy);
    d[2]->behaviour = &FakeWorker::answer;
    EXPECT_EQ((co_await ask(chat("hello"))).status, 200);
    EXPECT_EQ(d[2]->seen.size(), 1U);
    d[2]->behaviour = refuse(503, busy);
    const auto response = co_await ask(chat("hello"));
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(error_code(response), "overloaded");
    EXPECT_EQ(response.headers.get("retry-after"), "1");
    EXPECT_TRUE(co_await until([&] { return p[0]->disconnects == 1; }, 200ms))
        << "prefill's blocks are let go";
  });
}

TEST_F(RouterTest, AClientThatLeavesCancelsBothLegsAtOnce) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    for (const bool begun : {false, true}) {
      p[0]->disconnects = d[0]->disconnects = 0;
      p[0]->seen.clear();
      d[0]->seen.clear();
      p[0]->behaviour = hang;
      d[0]->behaviour = begun ? FakeWorker::Behaviour(begin_and_hang) : FakeWorker::Behaviour(hang);
      auto call = client->call(request(chat("hello", kStream)));
      reactor.spawn([](net::ClientCall& waiting) -> awaitable<void> {
        if (co_await waiting.head()) co_await waiting.read_all(1 << 20);
      }(*call));
      co_await until([&] { return p[0]->seen.size() == 1 && d[0]->seen.size() == 1; });
      co_await reactor.sleep(30ms);
      EXPECT_FALSE(router->idle());
      call->cancel();
      EXPECT_TRUE(
          co_await until([&] { return p[0]->disconnects == 1 && d[0]->disconnects == 1; }, 100ms));
      EXPECT_TRUE(co_await until([&] { return router->idle(); }, 100ms));
    }
    const std::string metrics = (co_await get("/metrics")).body;
    EXPECT_NE(metrics.find("tandem_router_client_disconnects_total 2"), std::string::npos);
  });
}

TEST_F(RouterTest, ADeadlineEndsARequestThatNobodyAnswers) {
  options.request_timeout = 200ms;
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->behaviour = d[0]->behaviour = hang;
    const auto response = co_await ask(chat("hello"));
    EXPECT_EQ(response.status, 504);
    EXPECT_EQ(error_code(response), "request_timeout");
    d[0]->behaviour = begin_and_hang;
    const auto stream = co_await ask(chat("hello", kStream));
    EXPECT_NE(stream.body.find("request_timeout"), std::string::npos);
    EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  });
}

TEST_F(RouterTest, AStoppedWorkerIsNoticedAndItsLegsGoElsewhere) {
  run(1, 2, 0, [this]() -> awaitable<void> {
    p[0]->delay = 2s;
    for (auto& worker : d) worker->behaviour = hang;
    reactor.spawn([](std::function<awaitable<void>()> then) -> awaitable<void> {
      co_await then();
    }([this]() -> awaitable<void> {
                    co_await until([&] { return d[0]->seen.size() + d[1]->seen.size() == 1; });
                    FakeWorker& chosen = d[0]->seen.empty() ? *d[1] : *d[0];
                    (&chosen == d[0].get() ? d[1] : d[0])->behaviour = &FakeWorker::answer;
                    chosen.freeze();
                  }));
    const TimePoint begin = std::chrono::steady_clock::now();
    const auto response = co_await ask(chat("hello", kStream));
    EXPECT_EQ(response.body, FakeWorker::text_frames() + "data: [DONE]\n\n");
    EXPECT_LT(seconds_since(begin), 1.0) << "two poll limits, the usage wait, and a little";
    for (auto& worker : d) worker->thaw();
  });
}

TEST_F(RouterTest, AStoppedWorkersStreamsEndWithAnErrorFrame) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = begin_and_hang;
    const auto call = client->call(request(chat("hello", kStream)));
    EXPECT_TRUE(co_await call->head());
    std::string text;
    while (text.find("\"c\"") == std::string::npos) text += (co_await call->read_some()).value();
    d[0]->freeze();
    const TimePoint begin = std::chrono::steady_clock::now();
    const auto rest = co_await call->read_all(1 << 20);
    EXPECT_TRUE(rest);
    EXPECT_LT(seconds_since(begin), 0.6) << "two poll limits and a little";
    EXPECT_NE(rest->find("decode_failed"), std::string::npos);
    EXPECT_TRUE(rest->ends_with("data: [DONE]\n\n"));
    d[0]->thaw();
  });
}

TEST_F(RouterTest, PrefillsServerErrorSendsTheRequestToAnotherPair) {
  run(2, 2, 0, [this]() -> awaitable<void> {
    p[0]->behaviour = refuse(500, "{}");
    for (auto& worker : d) worker->delay = 400ms;  // decode cannot answer before its KV has come
    // Ports differ from run to run, and with them the sessions that start on the failing worker.
    size_t asked = 0;
    while (asked < 64 && p[0]->seen.empty()) {
      // Nothing in common: the worker that answered before is not preferred for what it holds.
      const auto response = co_await ask(chat(std::to_string(asked) + " hello"),
                                         {{"X-Session-Id", std::to_string(asked)}});
      EXPECT_EQ(response.status, 200);
      ++asked;
    }
    EXPECT_EQ(p[1]->seen.size(), asked);
    EXPECT_GT(p[0]->seen.size(), 0U);
  });
}

TEST_F(RouterTest, AWorkerThatDiesAtRestIsSkippedWithoutAnError) {
  run(2, 2, 0, [this]() -> awaitable<void> {
    p[0]->kill();
    d[1]->kill();
    for (int i = 0; i < 10; ++i)
      EXPECT_EQ((co_await ask(chat("hello " + std::to_string(i)))).status, 200);
    EXPECT_EQ(p[1]->seen.size(), 10U);
    p[1]->kill();
    const auto response = co_await ask(chat("hello"));
    EXPECT_EQ(response.status, 503);
    EXPECT_TRUE(co_await until([&] { return !router->ready(); }));
    EXPECT_EQ((co_await get("/ready")).status, 503);
    EXPECT_EQ((co_await get("/health")).status, 503);
    EXPECT_EQ((co_await get("/live")).status, 200);
  });
}

TEST_F(RouterTest, AWrongSecretOrAnotherModelKeepsAWorkerOut) {
  run(1, 1, 2, [this]() -> awaitable<void> {
    u[0]->secret = "other";
    u[1]->lineage = "lineage-2";
    u[1]->epoch = "2";
    co_await reactor.sleep(200ms);
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ((co_await ask(chat("hello " + std::to_string(i)))).status, 200);
    EXPECT_EQ(u[0]->seen.size() + u[1]->seen.size(), 0U);
    EXPECT_EQ(d[0]->seen.size(), 5U);
  });
}

TEST_F(RouterTest, AnotherBlockSizeKeepsAWorkerOut) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    u[0]->block_tokens = 32;
    u[0]->epoch = "2";
    co_await reactor.sleep(200ms);
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ((co_await ask(chat("hello " + std::to_string(i)))).status, 200);
    EXPECT_EQ(u[0]->seen.size(), 0U);
    EXPECT_EQ(d[0]->seen.size(), 5U);
  });
}

TEST_F(RouterTest, NonsenseFromWorkersIsAnErrorNotACrash) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = refuse(200, "not json");
    EXPECT_EQ((co_await ask(chat("hello"))).body, "not json")
        << "no usage to rewrite: word for word";
    d[0]->behaviour = refuse(200, R"({"usage":7,"tandem":{}})");
    EXPECT_EQ((co_await ask(chat("hello"))).status, 502);
    d[0]->behaviour = &FakeWorker::answer;
    p[0]->behaviour = refuse(200, "{}");
    d[0]->behaviour = hang;
    EXPECT_EQ(error_code(co_await ask(chat("hello"))), "prefill_failed");
    d[0]->behaviour = refuse(401, "{}");
    p[0]->behaviour = hang;
    EXPECT_EQ((co_await ask(chat("hello"))).status, 502)
        << "our secret is not the client's business";
  });
}

TEST_F(RouterTest, AModelWithoutAnAnswerIsToldWordForWordAndAskedOnce) {
  run(0, 0, 2, [this]() -> awaitable<void> {
    const std::string body =
        R"({"error":{"message":"no numbers","type":"server_error","param":null,"code":"non_finite_logits"}})";
    for (auto& worker : u) worker->behaviour = refuse(500, body);
    for (size_t i = 1; i <= 8; ++i) {
      const auto response = co_await ask(chat("hello"));
      EXPECT_EQ(response.status, 500);
      EXPECT_EQ(response.body, body);
      EXPECT_EQ(response.headers.get("x-should-retry"), "false");
      EXPECT_EQ(u[0]->seen.size() + u[1]->seen.size(), i) << "another worker has the same model";
    }
    // The same, told by a stream that has given nothing yet.
    const auto streams = [body](FakeWorker&, FakeWorker::Seen&,
                                net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write(sse_frame(body) + "data: [DONE]\n\n");
      co_await responder.finish();
    };
    for (auto& worker : u) worker->behaviour = streams;
    const auto streamed = co_await ask(chat("hello", kStream));
    EXPECT_EQ(streamed.status, 500);
    EXPECT_EQ(streamed.body, body);
    EXPECT_EQ(u[0]->seen.size() + u[1]->seen.size(), 9U);
    for (auto& worker : u) worker->behaviour = &FakeWorker::answer;
    EXPECT_EQ((co_await ask(chat("hello"))).status, 200) << "no breaker is open";
  });
}

TEST_F(RouterTest, AWorkerThatOnlyFailsGetsNothingForAWhile) {
  run(0, 0, 2, [this]() -> awaitable<void> {
    u[0]->behaviour = refuse(500, "{}");
    for (int i = 0; i < 30; ++i) {
      // Nothing in common: no worker is preferred for what it holds.
      const auto response =
          co_await ask(chat(std::to_string(i) + " hello"), {{"X-Session-Id", std::to_string(i)}});
      EXPECT_EQ(response.status, 200) << "each request is saved by the other worker";
    }
    EXPECT_EQ(u[0]->seen.size(), 5U) << "then its breaker is open";
    EXPECT_EQ(u[1]->seen.size(), 30U);
  });
}

TEST_F(RouterTest, HealthStaysFastWhileManyStreamsRun) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = [this](FakeWorker&, FakeWorker::Seen&,
                             net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      const std::string frame = sse_frame(R"({"choices":[{"index":0,"delta":{"content":"x"}}]})");
      while (co_await responder.write(frame)) co_await reactor.sleep(20ms);
    };
    std::vector<std::unique_ptr<net::ClientCall>> calls;
    for (int i = 0; i < 100; ++i) {
      calls.push_back(client->call(request(chat("stream " + std::to_string(i), kStream))));
      reactor.spawn([](net::ClientCall& call) -> awaitable<void> {
        if (!co_await call.head()) co_return;
        while (true) {
          const auto bytes = co_await call.read_some();
          if (!bytes || bytes->empty()) co_return;
        }
      }(*calls.back()));
      co_await reactor.sleep(1ms);
    }
    co_await until([&] { return d[0]->seen.size() == 100; });
    double slowest = 0;
    for (int i = 0; i < 50; ++i) {
      const TimePoint begin = std::chrono::steady_clock::now();
      EXPECT_EQ((co_await get("/health")).status, 200);
      slowest = std::max(slowest, seconds_since(begin));
    }
    EXPECT_LT(slowest, 0.1);
    for (auto& call : calls) call->cancel();
    co_await until([&] { return router->idle(); });
    co_await reactor.sleep(50ms);
  });
}

TEST_F(RouterTest, ManyClientsThatComeAndGoLeaveNothingBehind) {
  run(2, 2, 0, [this]() -> awaitable<void> {
    int running = 0;
    uint32_t dice = 12345;
    const auto roll = [&dice](uint32_t sides) {
      return (dice = dice * 1664525 + 1013904223) / 65536 % sides;
    };
    for (auto& worker : d) {
      worker->piece = 40;
      worker->delay = 3ms;
    }
    for (int i = 0; i < 400; ++i) {
      ++running;
      reactor.spawn([](RouterTest*, net::Reactor& loop, std::unique_ptr<net::ClientCall> call,
                       uint32_t patience,
                       int& count) -> awaitable<void> {
        net::Deadline leave(loop, [&] { call->cancel(); });
        if (patience < 30) leave.arm(std::chrono::milliseconds(patience) + 1ms);
        if (co_await call->head()) co_await call->read_all(1 << 20);
        --count;
      }(this, reactor,
                                   client->call(request(chat("number " + std::to_string(i),
                                                             roll(2) == 0 ? kStream : ""))),
                                   roll(60), running));
      if (i == 200) p[0]->kill();
      if (i == 300) p[0]->restart();
      if (i % 16 == 0) co_await reactor.sleep(5ms);
    }
    EXPECT_TRUE(co_await until([&] { return running == 0; }, 10s));
    EXPECT_TRUE(co_await until([&] { return router->idle(); }));
    const std::string metrics = (co_await get("/metrics")).body;
    EXPECT_EQ(frames(metrics, "tandem_router_inflight_legs{"), 4U);
    for (const auto& address : options.workers) {
      EXPECT_NE(metrics.find("worker=\"" + address.url + "\"} 0\n"), std::string::npos);
    }
    EXPECT_NE(metrics.find("tandem_num_requests_running 0\n"), std::string::npos);
  });
}

}  // namespace
}  // namespace tandem::router
