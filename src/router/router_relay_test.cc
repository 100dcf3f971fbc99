// What passes through the router, and what does not.
#include <gtest/gtest.h>

#include "router/router_fixture.h"

namespace tandem::router {
namespace {

TEST_F(RouterTest, BothLegsGetTheClientsOwnBytesAndOneObject) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    const std::string body =
        R"(  {"messages":[{"role":"user","content":"hi é"}], "seed": 1234567890123456789, "n9":12345678901234567890123,  "unknown":{"b":1.50,"a":[ ]},"model":"fake"} )";
    net::Headers headers{
        {"Authorization", "Bearer abc"}, {"X-Custom", "1"},          {"X-Custom", "2"},
        {"Connection", "X-Hop"},         {"X-Hop", "secret"},        {"X-Request-Id", "mine-1"},
        {"X-Tandem-Auth", "forged"},     {"Accept-Encoding", "gzip"}};
    const auto response = co_await ask(body, headers);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.get("x-request-id"), "mine-1");
    EXPECT_EQ(response.headers.get("x-worker"), "yes");
    EXPECT_EQ(p[0]->seen.size(), 1U);
    EXPECT_EQ(d[0]->seen.size(), 1U);
    if (p[0]->seen.empty() || d[0]->seen.empty()) co_return;
    const auto& prefill = p[0]->seen[0];
    const auto& decode = d[0]->seen[0];
    for (const auto* seen : {&prefill, &decode}) {
      EXPECT_EQ(seen->path, "/v1/chat/completions");
      // Cutting the one object out again gives the client's bytes.
      const size_t begin = seen->body.find("\"tandem\"");
      const size_t end = seen->body.find("\"messages\"");
      EXPECT_EQ(seen->body.substr(0, begin) + seen->body.substr(end), body);
      EXPECT_EQ(seen->headers.get("authorization"), "Bearer abc");
      EXPECT_EQ(seen->headers.count("x-custom"), 2U);
      EXPECT_EQ(seen->headers.count("x-hop"), 0U);
      EXPECT_EQ(seen->headers.count("accept-encoding"), 0U);
      EXPECT_EQ(seen->headers.get("x-request-id"), "mine-1");
      EXPECT_EQ(seen->headers.count("x-tandem-auth"), 1U);
      EXPECT_EQ(seen->tandem.find("context")->find("request_id")->as_string(), "mine-1");
      EXPECT_GT(number(seen->tandem, {"context", "deadline_ms"}), 1000);
      EXPECT_TRUE(seen->tandem.find("report_tokens")->as_bool());
      EXPECT_EQ(seen->prompt_tokens(), std::string("|user\nhi \xC3\xA9||assistant\n").size());
    }
    EXPECT_EQ(prefill.leg(), "prefill");
    EXPECT_EQ(decode.leg(), "decode");
    EXPECT_EQ(prefill.handoff().find("id")->as_string(), decode.handoff().find("id")->as_string());
    EXPECT_EQ(decode.handoff().find("id")->as_string().size(), 32U);
    EXPECT_EQ(decode.handoff().find("prefill_address")->as_string(), "unix:/fake");
  });
}

TEST_F(RouterTest, AFinishReasonThatNobodyKnowsIsHandedOnAsItIs) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    for (const char* const more : {"", R"(,"stream":true)"}) {
      u[0]->behaviour = [](FakeWorker& worker, FakeWorker::Seen& seen,
                           net::HttpResponder& responder) -> awaitable<void> {
        const bool stream = seen.body.find("\"stream\"") != std::string::npos;
        std::string text = stream ? worker.stream(seen) : worker.whole(seen);
        const std::string usual = "\"finish_reason\":\"stop\"";
        text.replace(text.find(usual), usual.size(), "\"finish_reason\":\"error\"");
        co_await responder.send(
            200, {{"Content-Type", stream ? "text/event-stream" : "application/json"}}, text);
      };
      const auto response = co_await ask(chat("hello", more));
      EXPECT_EQ(response.status, 200);
      EXPECT_EQ(frames(response.body, "\"finish_reason\":\"error\""), 1U) << response.body;
    }
  });
}

TEST_F(RouterTest, AnAnswerThatIsTooLargeIsTheRequestsFaultNotTheWorkers) {
  options.max_answer_bytes = 3000;
  run(1, 1, 0, [this]() -> awaitable<void> {
    d[0]->behaviour = [](FakeWorker&, FakeWorker::Seen&,
                         net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.send(200, {{"Content-Type", "application/json"}},
                              std::string(4000, ' ') + "{}");
    };
    const auto refused = co_await ask(chat("hello"));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.headers.get("x-should-retry"), "false");
    EXPECT_EQ(json(refused.body).find("error")->find("code")->as_string(), "answer_too_large");
    EXPECT_EQ(d[0]->seen.size(), 1U) << "no other try";
    EXPECT_TRUE(router->ready());
    d[0]->behaviour = &FakeWorker::answer;
    EXPECT_EQ((co_await ask(chat("hello"))).status, 200);
  });
}

TEST_F(RouterTest, AFrameOfAPromptsLogprobsMayBeLarge) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const std::string large(9UL << 20, 'x');
    u[0]->behaviour = [&large](FakeWorker& self, FakeWorker::Seen& request,
                               net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write("data: {\"choices\":[{\"text\":\"" + large + "\"}]}\n\n");
      co_await responder.write("data: [DONE]\n\n");
      co_await responder.finish();
      (void)self;
      (void)request;
    };
    const auto response = co_await ask(chat("hello", R"(,"stream":true)"));
    EXPECT_EQ(response.status, 200);
    EXPECT_GT(response.body.size(), large.size());
    EXPECT_EQ(response.body.find("\"error\""), std::string::npos);
  });
}

TEST_F(RouterTest, UsageIsPrefillsTruthInAWholeAnswer) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->cached = 7;
    const auto response = co_await ask(chat("hello"));
    const JsonValue body = json(response.body);
    const auto prompt = static_cast<int64_t>(p[0]->seen[0].prompt_tokens());
    EXPECT_EQ(number(body, {"usage", "prompt_tokens"}), prompt);
    EXPECT_EQ(number(body, {"usage", "prompt_tokens_details", "cached_tokens"}), 7);
    EXPECT_EQ(number(body, {"usage", "completion_tokens"}), 5);
    EXPECT_EQ(number(body, {"usage", "total_tokens"}), prompt + 5);
    EXPECT_EQ(body.find("tandem"), nullptr);
    EXPECT_TRUE(response.body.starts_with(R"({ "id":"c1", "choices":[{"index":0,)"))
        << "the rest is byte for byte";
    EXPECT_NE(response.body.find("\"n\":9007199254740993, "), std::string::npos);
  });
}

TEST_F(RouterTest, AStreamIsByteForByteAtEverySplit) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    for (size_t piece = 1; piece < 1200; piece += piece < 40 ? 1 : 97) {
      d[0]->piece = piece;
      const auto response = co_await ask(chat("hello", R"(,"stream":true)"));
      EXPECT_EQ(response.status, 200);
      EXPECT_EQ(response.headers.get("content-type"), "text/event-stream");
      EXPECT_EQ(response.body, FakeWorker::text_frames() + "data: [DONE]\n\n")
          << "pieces of " << piece;
      if (response.body != FakeWorker::text_frames() + "data: [DONE]\n\n") break;
    }
  });
}

TEST_F(RouterTest, AStreamsUsageFrameIsRewrittenWhenTheClientAskedForIt) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->cached = 3;
    for (const size_t piece : {1U, 7U, 5000U}) {
      d[0]->piece = piece;
      const auto response =
          co_await ask(chat("hello", R"(,"stream":true,"stream_options":{"include_usage":true})"));
      const std::string head = FakeWorker::text_frames();
      EXPECT_TRUE(response.body.starts_with(head));
      EXPECT_TRUE(response.body.ends_with("}\n\ndata: [DONE]\n\n"));
      const std::string frame =
          response.body.substr(head.size() + 6, response.body.size() - head.size() - 6 - 16);
      const JsonValue chunk = json(frame);
      EXPECT_EQ(number(chunk, {"usage", "prompt_tokens_details", "cached_tokens"}), 3);
      EXPECT_EQ(number(chunk, {"usage", "completion_tokens"}), 5);
      EXPECT_EQ(chunk.find("tandem"), nullptr);
    }
  });
}

TEST_F(RouterTest, TokensNeverWaitForPrefillsAnswerAndUsageWaitsOnlySoLong) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->delay = 150ms;
    const TimePoint begin = std::chrono::steady_clock::now();
    const auto call = client->call(
        request(chat("hello", R"(,"stream":true,"stream_options":{"include_usage":true})")));
    EXPECT_TRUE(co_await call->head());
    std::string text;
    while (text.find("\xF0\x9F\x98\x80") == std::string::npos)
      text += (co_await call->read_some()).value();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 100ms);
    EXPECT_EQ(text.find("usage\":{"), std::string::npos);
    text += (co_await call->read_all(1 << 20)).value();
    EXPECT_GT(std::chrono::steady_clock::now() - begin, 140ms);
    EXPECT_NE(text.find("\"cached_tokens\":0"), std::string::npos) << text;

    p[0]->delay =
        2s;  // longer than usage_wait: no cached number at all rather than decode's wrong one
    const auto late =
        co_await ask(chat("hello", R"(,"stream":true,"stream_options":{"include_usage":true})"));
    EXPECT_EQ(late.body.find("cached_tokens"), std::string::npos);
    EXPECT_NE(late.body.find("\"completion_tokens\":5"), std::string::npos);
  });
}

TEST_F(RouterTest, TheReportNamesTheWorkersAndTheBytes) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    const net::Headers headers{{"X-Tandem-Report", "1"}};
    const JsonValue whole = json((co_await ask(chat("hello"), headers)).body);
    EXPECT_EQ(number(whole, {"tandem", "kv_bytes"}), 4096);
    EXPECT_EQ(whole.find("tandem")->find("prefill_worker")->as_string(), p[0]->address().url);
    EXPECT_EQ(whole.find("tandem")->find("decode_worker")->as_string(), d[0]->address().url);
    EXPECT_EQ(whole.find("tandem")->find("completion_token_ids"), nullptr);
    const auto stream = co_await ask(chat("hello", R"(,"stream":true)"), headers);
    EXPECT_NE(stream.body.find("\"tandem\":{\"kv_bytes\":4096"), std::string::npos);
    EXPECT_EQ(d[0]->seen[0].headers.count("x-tandem-report"), 0U);
  });
}

TEST_F(RouterTest, AUnifiedWorkerGetsOneLegAndItsUsageStands) {
  run(0, 0, 2, [this]() -> awaitable<void> {
    const JsonValue body = json((co_await ask(chat("hello"))).body);
    const auto& worker = u[0]->seen.empty() ? *u[1] : *u[0];
    EXPECT_EQ(worker.seen.size(), 1U);
    EXPECT_EQ(worker.seen[0].leg(), "unified");
    EXPECT_TRUE(worker.seen[0].handoff().is_null());
    EXPECT_EQ(number(body, {"usage", "prompt_tokens_details", "cached_tokens"}),
              static_cast<int64_t>(worker.seen[0].prompt_tokens()));
  });
}

TEST_F(RouterTest, AShortTailOnTheDecodeWorkerThatHoldsThePrefixSkipsPrefillUntilItsEpochChanges) {
  options.policy.local_prefill_tokens = 256;
  run(1, 2, 0, [this]() -> awaitable<void> {
    const std::string text(400, 'a');
    co_await ask(chat(text));
    EXPECT_EQ(p[0]->seen.size(), 1U);
    FakeWorker& home = d[0]->seen.empty() ? *d[1] : *d[0];
    co_await ask(chat(text + " and more"));
    EXPECT_EQ(p[0]->seen.size(), 1U) << "decode holds the prefix: no prefill leg";
    EXPECT_EQ(home.seen.size(), 2U);
    EXPECT_EQ(home.seen.back().leg(), "unified");
    co_await ask(chat(text + std::string(300, 'b')));
    EXPECT_EQ(p[0]->seen.size(), 2U) << "the tail is too long to compute beside running streams";
    EXPECT_NE((co_await get("/metrics")).body.find("tandem_router_local_prefills_total 1"),
              std::string::npos);
    home.kill();
    co_await reactor.sleep(20ms);
    home.restart();
    co_await until([&] { return router->ready(); });
    co_await reactor.sleep(200ms);
    co_await ask(chat(text + " and more"));
    EXPECT_GE(p[0]->seen.size(), 3U) << "a new process holds nothing";
  });
}

TEST_F(RouterTest, ASessionKeepsItsWorkers) {
  run(3, 3, 0, [this]() -> awaitable<void> {
    for (const char* header : {"X-Session-Affinity", "X-Session-Id"}) {
      for (auto* pool : {&p, &d}) {
        for (auto& worker : *pool) worker->seen.clear();
      }
      for (int i = 0; i < 6; ++i)
        co_await ask(chat("different " + std::to_string(i * 7919)), {{header, "agent-7"}});
      for (auto* pool : {&p, &d}) {
        int used = 0;
        for (auto& worker : *pool) used += worker->seen.empty() ? 0 : 1;
        EXPECT_EQ(used, 1) << header;
      }
    }
  });
}

TEST_F(RouterTest, CompletionsPassThroughToo) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    const auto response = co_await ask(R"({"prompt":"abc","max_tokens":5})", {}, "/v1/completions");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(p[0]->seen[0].path, "/v1/completions");
    EXPECT_EQ(p[0]->seen[0].prompt_tokens(), 3U);
  });
}

}  // namespace
}  // namespace tandem::router
