// Routes, keys, checks at the edge.
#include <set>

#include <gtest/gtest.h>

#include "base/reply_text.h"
#include "router/router_fixture.h"

namespace tandem::router {
namespace {

TEST_F(RouterTest, EveryRouteOfTheTableButTheDocumentedOnesNeedsTheKey) {
  options.api_keys = {"key-one", "key-two"};
  run(1, 1, 0, [this]() -> awaitable<void> {
    const std::set<std::string_view> open = {"/", "/live", "/health", "/ready"};
    std::vector<net::RouteHead> rows = Router::routes();
    EXPECT_GE(rows.size(), 10U);
    rows.push_back({"GET", "/nothing"});
    rows.push_back({"POST", "/invocations"});
    for (const net::RouteHead& row : rows) {
      EXPECT_EQ(row.open, open.contains(row.path)) << row.path;
      const std::string body = row.method == "POST" ? chat("x") : "";
      for (const net::Headers& bad :
           {net::Headers{}, net::Headers{{"Authorization", "Bearer key-on"}},
            net::Headers{{"Authorization", "Bearer key-onekey-one"}},
            net::Headers{{"Authorization", "Bearer "}},
            net::Headers{{"Authorization", "key-three"}},
            net::Headers{{"x-tandem-auth", "key-one"}}}) {
        EXPECT_EQ((co_await ask(body, bad, std::string(row.path))).status, row.open ? 200 : 401)
            << row.path;
      }
      for (const net::Headers& good : {net::Headers{{"Authorization", "Bearer key-two"}},
                                       net::Headers{{"authorization", "bearer key-one"}},
                                       net::Headers{{"x-api-key", "key-one"}}}) {
        EXPECT_NE((co_await ask(body, good, std::string(row.path))).status, 401) << row.path;
      }
    }
    EXPECT_EQ(error_code(co_await get("/v1/models")), "invalid_api_key");
  });
}

TEST_F(RouterTest, OptionsAndHeadAreAnsweredFromTheTable) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    for (const net::RouteHead& row : Router::routes()) {
      net::ClientRequest asked = request("", std::string(row.path));
      asked.method = "OPTIONS";
      const auto options_answer = co_await net::fetch(*client, asked);
      EXPECT_EQ(options_answer->status, 204) << row.path;
      EXPECT_TRUE(options_answer->headers.has_token("allow", std::string(row.method)));
      asked.method = "HEAD";
      const auto head = co_await net::fetch(*client, asked);
      // No model and no response has that name; and there is no WebSocket.
      const bool named =
          row.path.find("{id}") != std::string_view::npos || row.path == "/v1/models/{model}";
      const int found = row.path == "/v1/responses" ? 426 : named ? 404 : 200;
      const bool gets = options_answer->headers.has_token("allow", "GET");
      EXPECT_EQ(head->status, gets ? found : 405) << row.path;
      EXPECT_EQ(head->body, "");
    }
  });
}

TEST_F(RouterTest, AHugeMessageDoesNotHoldHealthUp) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const std::string body = chat(std::string(6 << 20, 'a') + " b c");
    bool done = false;
    const auto send = [&]() -> awaitable<void> {
      const auto answered = co_await ask(body);
      EXPECT_EQ(error_code(answered), "context_length_exceeded");
      done = true;
    };
    reactor.spawn(send());
    Duration worst{};
    int asked = 0;
    while (!done) {
      const TimePoint before = std::chrono::steady_clock::now();
      EXPECT_EQ((co_await get("/health")).status, 200);
      worst = std::max<Duration>(worst, std::chrono::steady_clock::now() - before);
      ++asked;
      co_await reactor.sleep(1ms);
    }
    EXPECT_GT(asked, 3) << "the message must take long enough to mean something";
    EXPECT_LT(to_seconds(worst), 0.1);
  });
}

TEST_F(RouterTest, UnknownPathsAndMethodsAreErrorObjects) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const auto nothing = co_await get("/v1/nothing");
    EXPECT_EQ(nothing.status, 404);
    EXPECT_EQ(error_code(nothing), "not_found");
    const auto method = co_await get("/v1/chat/completions");
    EXPECT_EQ(method.status, 405);
    EXPECT_EQ(method.headers.get("allow"), "POST, OPTIONS");
    EXPECT_EQ((co_await ask("{}", {}, "/v1/models")).headers.get("allow"), "GET, HEAD, OPTIONS");
    EXPECT_EQ(error_code(method), "method_not_allowed");
    EXPECT_EQ((co_await ask("{}", {}, "/health")).status, 405);
    EXPECT_EQ((co_await get("/health?x=1")).status, 200);
  });
}

TEST_F(RouterTest, BadRequestsEndAtTheEdge) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const auto code = [this](std::string body) -> awaitable<std::string> {
      const auto response = co_await ask(std::move(body));
      EXPECT_GE(response.status, 400);
      EXPECT_LT(response.status, 500);
      co_return error_code(response);
    };
    EXPECT_EQ(co_await code("{"), "invalid_json");
    EXPECT_EQ(
        co_await code(R"({"messages":[{"role":"user","content":"x"}],"tandem":{"leg":"unified"}})"),
        "invalid_request_error");
    EXPECT_EQ(co_await code(R"({"model":"other","messages":[{"role":"user","content":"x"}]})"),
              "model_not_found");
    EXPECT_EQ(co_await code(chat(std::string(5000, 'x'))), "context_length_exceeded");
    EXPECT_EQ(co_await code(chat("x", R"(,"temperature":"hot")")), "invalid_type");
    EXPECT_TRUE(u[0]->seen.empty());
    const auto missing =
        co_await ask(R"({"messages":[{"role":"user","content":"x"}],"model":"fake"})");
    EXPECT_EQ(missing.status, 200);
    EXPECT_EQ(missing.headers.get("x-request-id").size(), 32U) << "minted";
    const auto forged = co_await ask(chat("x"), {{"X-Request-Id", std::string(200, 'a')}});
    EXPECT_EQ(forged.headers.get("x-request-id").size(), 32U) << "too long to repeat";
  });
}

TEST_F(RouterTest, ModelsAndTokensAreAnsweredLocally) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const JsonValue models = json((co_await get("/v1/models")).body);
    EXPECT_EQ(models.find("data")->items()[0].find("id")->as_string(), "fake");
    const auto tokens = co_await ask(R"({"prompt":"abc"})", {}, "/tokenize");
    EXPECT_EQ(json(tokens.body).find("tokens")->dump(), "[97,98,99]");
    const auto text = co_await ask(R"({"tokens":[97,98,99]})", {}, "/detokenize");
    EXPECT_EQ(json(text.body).find("prompt")->as_string(), "abc");
    EXPECT_EQ((co_await ask(R"({"tokens":[9999]})", {}, "/detokenize")).status, 400);
    EXPECT_EQ(json((co_await get("/v1/models/fake")).body).find("id")->as_string(), "fake");
    EXPECT_EQ(error_code(co_await get("/v1/models/fa%6be%2f")), "model_not_found");
    EXPECT_EQ((co_await get("/v1/models/fa%6Be")).status, 200);
    EXPECT_EQ((co_await get("/v1/models/")).status, 404);
    EXPECT_NE((co_await get("/api/tags")).body.find("fake:latest"), std::string::npos);
    EXPECT_NE((co_await get("/openapi.json")).body.find("/v1/embeddings"), std::string::npos);
    EXPECT_TRUE(u[0]->seen.empty());
  });
}

TEST_F(RouterTest, DrainTurnsReadyOffAndRefusesNewRequests) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    EXPECT_EQ((co_await get("/ready")).status, 200);
    router->begin_drain();
    const auto ready = co_await get("/ready");
    EXPECT_EQ(ready.status, 503);
    EXPECT_EQ(error_code(ready), "draining");
    const auto late = co_await ask(chat("x"));
    EXPECT_EQ(late.status, 503);
    EXPECT_EQ(error_code(late), "draining");
    EXPECT_EQ(late.headers.get("retry-after"), "1");
    EXPECT_TRUE(u[0]->seen.empty());
  });
}

TEST_F(RouterTest, OtherContentsThanJsonAreRefused) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "json", "x+jso"}) {
      const auto refused = co_await ask(chat("x"), {{"Content-Type", type}});
      EXPECT_EQ(refused.status, 400) << type;
      EXPECT_EQ(error_code(refused), "unsupported_content_type");
      EXPECT_EQ(refused.headers.get("x-should-retry"), "false");
    }
    for (const char* type : {"application/json", "Application/JSON ; charset=utf-8", "a/b+json"})
      EXPECT_EQ((co_await ask(chat("x"), {{"Content-Type", type}})).status, 200) << type;
  });
}

TEST_F(RouterTest, WebPagesMustNameTheirContent) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    const net::Headers page{{"Origin", "https://evil.example"}};
    EXPECT_EQ((co_await ask(chat("x"), page)).status, 400) << "sent without a preflight";
    net::ClientRequest ollama =
        request(R"({"model":"default","prompt":"x","stream":false})", "/api/generate", page);
    for (const char* const type : {"", "text/plain"}) {
      if (*type != '\0') ollama.headers.set("Content-Type", type);
      const auto refused = co_await net::fetch(*client, ollama);
      EXPECT_TRUE(refused && refused->status == 400) << type;
    }
    EXPECT_TRUE(u[0]->seen.empty());
    EXPECT_EQ((co_await ask(chat("x"), {{"Origin", "http://localhost:1"},
                                        {"Content-Type", "application/json"}}))
                  .status,
              200);
  });
}

TEST_F(RouterTest, RefusalsRepeatTheRequestId) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    for (const char* path : {"/nothing", "/tokenize", "/v1/models", "/health", "/"}) {
      const auto any = co_await ask("{}", {{"X-Request-Id", "mine-7"}}, path);
      EXPECT_EQ(any.headers.get("x-request-id"), "mine-7") << path;
      EXPECT_EQ(any.headers.count("x-request-id"), 1U) << path;
    }
    EXPECT_EQ(
        (co_await ask("{", {{"X-Request-Id", "with space"}})).headers.get("x-request-id").size(),
        32U);
    const auto refused = co_await ask("{", {{"X-Request-Id", "mine"}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.headers.get("x-request-id"), "mine");
    EXPECT_EQ((co_await ask("{")).headers.get("x-request-id").size(), 32U) << "minted";
  });
}

TEST_F(RouterTest, WhatOutlastsTheDrainEndsWithAnErrorFrame) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    u[0]->behaviour = [](FakeWorker& worker, FakeWorker::Seen&,
                         net::HttpResponder& responder) -> awaitable<void> {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write(sse_frame(R"({"choices":[{"index":0,"delta":{"content":"x"}}]})"));
      co_await worker.client_leaves(5s);
    };
    const auto call = client->call(request(chat("x", R"(,"stream":true)")));
    EXPECT_TRUE(co_await call->head());
    router->begin_drain(100ms);
    const auto text = co_await call->read_all(1 << 20);
    EXPECT_TRUE(text);
    EXPECT_NE(text->find("shutting_down"), std::string::npos);
    EXPECT_TRUE(text->ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(u[0]->disconnects, 1);
  });
}

TEST_F(RouterTest, AMovedWorkerIsFoundAgain) {
  run(0, 0, 1, [this]() -> awaitable<void> {
    FakeWorker replacement(reactor, WorkerRole::kUnified);
    replacement.epoch = "new";
    u[0]->kill();
    EXPECT_TRUE(router->move_worker(0, replacement.address().url));
    EXPECT_FALSE(router->move_worker(1, replacement.address().url));
    EXPECT_TRUE(co_await until([&] { return router->ready(); }));
    EXPECT_EQ((co_await ask(chat("x"))).status, 200);
    EXPECT_EQ(replacement.seen.size(), 1U);
    co_await reactor.sleep(20ms);
    replacement.kill();
    co_await reactor.sleep(20ms);
  });
}

TEST_F(RouterTest, MetricsCountWhatClientsWereTold) {
  run(1, 1, 0, [this]() -> awaitable<void> {
    p[0]->cached = 4;
    co_await ask(chat("hello"));
    co_await ask(chat("hello", R"(,"stream":true)"));
    co_await get("/nothing");
    const std::string text = (co_await get("/metrics")).body;
    const std::string prompt = std::to_string(2 * p[0]->seen[0].prompt_tokens());
    EXPECT_NE(text.find("tandem_prompt_tokens_total{model_name=\"fake\"} " + prompt + "\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("tandem_generation_tokens_total{model_name=\"fake\"} 10\n"),
              std::string::npos);
    EXPECT_NE(text.find("tandem_prefix_cache_hits_total 8\n"), std::string::npos);
    EXPECT_NE(text.find("tandem_kv_transfer_bytes_total 8192\n"), std::string::npos);
    EXPECT_NE(
        text.find("tandem_router_requests_total{code=\"200\",route=\"/v1/chat/completions\"} 2"),
        std::string::npos);
    EXPECT_NE(text.find("route=\"other\""), std::string::npos);
    EXPECT_EQ(text.find("nothing"), std::string::npos) << "clients cannot make series";
  });
}

TEST(RouterStart, NamesWhatIsWrong) {
  net::Reactor reactor;
  EXPECT_EQ(Router(reactor, {}).start().error().code, "no_workers");
  RouterOptions options;
  options.workers = {{"http://x:y", WorkerRole::kUnified}};
  EXPECT_EQ(Router(reactor, options).start().error().code, "bad_url");
}

}  // namespace
}  // namespace tandem::router
