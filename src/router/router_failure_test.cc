// What happens when a leg or the client fails.
#include <algorithm>

#include <gtest/gtest.h>

#include "router/router_fixture.h"

namespace tandem::router {
namespace {

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

}  // namespace
}  // namespace tandem::router
