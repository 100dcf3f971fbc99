// RouterTest: fake workers, the router and a client on one reactor; each test is one coroutine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/reply_text.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "router/fake_worker.h"
#include "router/router.h"

namespace tandem::router {

using net::asio::awaitable;
using namespace std::chrono_literals;

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    options.secret = "s3cret";
    options.poll_interval = 50ms;
    options.poll_timeout = 100ms;
    options.usage_wait = 300ms;
    options.access_log = false;
    options.policy.local_prefill_tokens = 0;  // prompts repeat here; one test is about it
  }

  void run(int prefills, int decodes, int unified, std::function<awaitable<void>()> body) {
    for (int i = 0; i < prefills; ++i) add(WorkerRole::kPrefill, p);
    for (int i = 0; i < decodes; ++i) add(WorkerRole::kDecode, d);
    for (int i = 0; i < unified; ++i) add(WorkerRole::kUnified, u);
    if (before_start) before_start();
    router.emplace(reactor, options);
    ASSERT_TRUE(router->start());
    server.emplace(reactor, net::ServerOptions{}, router->handler(), router->gate());
    port = server->listen().value();
    client.emplace(reactor);
    net::run_until_done(reactor, whole_test(std::move(body)));
  }

  awaitable<void> whole_test(std::function<awaitable<void>()> body) {
    co_await until([&] { return router->complete(); });
    EXPECT_TRUE(router->ready());
    co_await body();
    co_await until([&] { return router->idle(); });
    EXPECT_TRUE(router->idle()) << "loads must be exactly zero when nothing runs";
    client.reset();
    server.reset();
    router.reset();
    for (auto* pool : {&p, &d, &u}) {
      for (auto& worker : *pool) worker->kill();
    }
    co_await reactor.sleep(30ms);
  }

  void add(WorkerRole role, std::vector<std::unique_ptr<FakeWorker>>& pool) {
    pool.push_back(std::make_unique<FakeWorker>(reactor, role));
    options.workers.push_back(pool.back()->address());
  }

  awaitable<bool> until(std::function<bool()> condition, Duration limit = 3s) {
    const TimePoint end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) co_return false;
      co_await reactor.sleep(5ms);
    }
    co_return true;
  }

  net::ClientRequest request(std::string body, std::string path = "/v1/chat/completions",
                             net::Headers headers = {}) {
    net::ClientRequest made;
    made.method = body.empty() ? "GET" : "POST";
    made.host = "127.0.0.1";
    made.port = port;
    made.target = std::move(path);
    made.headers = std::move(headers);
    made.body = std::move(body);
    return made;
  }
  static std::string chat(const std::string& content, const std::string& more = "") {
    return R"({"model":"default","messages":[{"role":"user","content":")" + content + "\"}]" +
           more + "}";
  }

  awaitable<net::WholeResponse> ask(std::string body, net::Headers headers = {},
                                    std::string path = "/v1/chat/completions") {
    auto response =
        co_await net::fetch(*client, request(std::move(body), std::move(path), std::move(headers)));
    EXPECT_TRUE(response) << response.error().message;
    co_return response ? std::move(*response) : net::WholeResponse{};
  }
  awaitable<net::WholeResponse> get(std::string path, net::Headers headers = {}) {
    return ask("", std::move(headers), std::move(path));
  }

  // Until the router says that so many workers are up.
  awaitable<bool> until_up(size_t count) {
    const TimePoint end = std::chrono::steady_clock::now() + 3s;
    while (std::chrono::steady_clock::now() < end) {
      const auto told = parse_json((co_await get("/router/workers")).body);
      size_t up = 0;
      for (const JsonValue& worker : told->find("workers")->items())
        up += worker.find("state")->as_string() == "up" ? 1 : 0;
      if (up == count) co_return true;
      co_await reactor.sleep(5ms);
    }
    co_return false;
  }

  static JsonValue json(const std::string& text) {
    auto parsed = parse_json(text);
    EXPECT_TRUE(parsed) << text;
    return parsed ? *parsed : JsonValue();
  }
  static std::string error_code(const net::WholeResponse& response) {
    const JsonValue body = json(response.body);
    const JsonValue* const error = body.find("error");
    return error == nullptr ? "none: " + response.body : error->find("code")->as_string();
  }
  static int64_t number(const JsonValue& from, std::initializer_list<const char*> path) {
    const JsonValue* at = &from;
    for (const char* key : path) at = at == nullptr ? nullptr : at->find(key);
    return at == nullptr ? -1 : at->as_integer().value_or(-1);
  }
  static size_t frames(const std::string& text, const std::string& what) {
    size_t count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++count;
    return count;
  }

  std::function<void()> before_start;  // the fake workers are there, the router is not
  RouterOptions options;
  net::Reactor reactor;
  std::vector<std::unique_ptr<FakeWorker>> p, d, u;
  std::optional<Router> router;
  std::optional<net::HttpServer> server;
  std::optional<net::HttpClient> client;
  uint16_t port = 0;
};

// How fake workers may behave.
inline const std::string kStream = R"(,"stream":true,"max_tokens":50)";

inline awaitable<void> hang(FakeWorker& worker, FakeWorker::Seen&, net::HttpResponder&) {
  co_await worker.client_leaves(5s);
}

inline FakeWorker::Behaviour refuse(int status, const std::string& body) {
  return [status, body](FakeWorker&, FakeWorker::Seen&,
                        net::HttpResponder& responder) -> awaitable<void> {
    co_await responder.send(status, {{"Content-Type", "application/json"}}, body);
  };
}

// Streams three pieces, then waits for its client to leave.
inline awaitable<void> begin_and_hang(FakeWorker& worker, FakeWorker::Seen&,
                                      net::HttpResponder& responder) {
  co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
  for (const char* text : {"a", "b", "c"}) {
    co_await responder.write(
        sse_frame(R"({"choices":[{"index":0,"delta":{"content":")" + std::string(text) + "\"}}]}"));
  }
  co_await worker.client_leaves(5s);
}

inline double seconds_since(TimePoint begin) {
  return to_seconds(std::chrono::steady_clock::now() - begin);
}

}  // namespace tandem::router
