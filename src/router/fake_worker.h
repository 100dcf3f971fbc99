// FakeWorker: a worker for tests of the router. Real HTTP on a kernel-picked port, no model: it
// speaks the worker side of the protocol and misbehaves on request.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "net/event.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "router/worker_registry.h"
#include "text/byte_tokenizer.h"

namespace tandem::router {

class FakeWorker {
 public:
  struct Seen {
    std::string path;
    net::Headers headers;
    std::string body;
    JsonValue tandem;
    std::string leg() const {
      return tandem.find("leg") == nullptr ? "unified" : tandem.find("leg")->as_string();
    }
    size_t prompt_tokens() const {
      const JsonValue* const ids = tandem.find("prompt_token_ids");
      return ids == nullptr ? 1 : ids->items().size();
    }
    JsonValue handoff() const {
      return tandem.find("handoff") == nullptr ? JsonValue() : *tandem.find("handoff");
    }
  };
  using Behaviour =
      std::function<net::asio::awaitable<void>(FakeWorker&, Seen&, net::HttpResponder&)>;

  FakeWorker(net::Reactor& reactor, WorkerRole role)
      : reactor_(reactor), thawed_(reactor), gone_(reactor), role_(role) {
    behaviour = role == WorkerRole::kPrefill ? &FakeWorker::prefill : &FakeWorker::answer;
    start();
  }

  void start(uint16_t port = 0) {
    server_.emplace(reactor_, net::ServerOptions{.port = port},
                    [this](net::HttpRequest& request, net::HttpResponder& responder) {
                      return handle(request, responder);
                    });
    port_ = server_->listen().value();
  }
  // The process is gone: connections are reset and nobody listens.
  void kill() { server_.reset(); }
  void restart() {
    epoch += "x";
    start(port_);
  }
  // SIGSTOP and SIGCONT: connections are accepted by the kernel, nothing answers.
  void freeze() { frozen_ = true; }
  void thaw() {
    frozen_ = false;
    thawed_.notify();
  }

  WorkerAddress address() const { return {"http://127.0.0.1:" + std::to_string(port_), role_}; }
  net::Reactor& reactor() { return reactor_; }

  // Waits until the client of a request here leaves; false after `limit`.
  net::asio::awaitable<bool> client_leaves(Duration limit) {
    const int before = disconnects;
    const TimePoint until = std::chrono::steady_clock::now() + limit;
    while (disconnects == before) {
      if (!co_await gone_.wait_for(until - std::chrono::steady_clock::now()))
        co_return disconnects != before;
    }
    co_return true;
  }

  static net::asio::awaitable<void> prefill(FakeWorker& self, Seen& request,
                                            net::HttpResponder& responder) {
    co_await self.reactor_.sleep(self.delay);
    co_await responder.send(200, {{"Content-Type", "application/json"}},
                            self.prefill_report(request));
  }
  std::string prefill_report(const Seen& request) const {
    return R"({"object":"tandem.prefill","usage":{"prompt_tokens":)" +
           std::to_string(request.prompt_tokens()) + R"(,"cached_tokens":)" +
           std::to_string(cached) + R"(},"kv_bytes":4096,"blocks_sent":2})";
  }

  // Five pieces of text, the terminal frame, [DONE]; or the whole object.
  static net::asio::awaitable<void> answer(FakeWorker& self, Seen& request,
                                           net::HttpResponder& responder) {
    co_await self.reactor_.sleep(self.delay);
    if (request.body.find("\"stream\":true") == std::string::npos) {
      co_await responder.send(200, {{"Content-Type", "application/json"}, {"X-Worker", "yes"}},
                              self.whole(request));
      co_return;
    }
    co_await responder.begin_stream(200,
                                    {{"Content-Type", "text/event-stream"}, {"X-Worker", "yes"}});
    const std::string all = self.stream(request);
    for (size_t at = 0; at < all.size(); at += self.piece) {
      if (!co_await responder.write(std::string_view(all).substr(at, self.piece))) co_return;
    }
    co_await responder.finish();
  }
  std::string usage(const Seen& request) const {
    const std::string prompt = std::to_string(request.prompt_tokens());
    return R"("usage":{"prompt_tokens":)" + prompt +
           R"(,"completion_tokens":5,"total_tokens":0,"prompt_tokens_details":{"cached_tokens":)" +
           prompt + R"(}},"tandem":{"completion_token_ids":[[104,101,108,108,111]]})";
  }
  std::string whole(const Seen& request) const {
    return R"({ "id":"c1", "choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}], "n":9007199254740993, )" +
           usage(request) + "}";
  }
  static std::string text_frames() {
    std::string out =
        "data: "
        "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_"
        "reason\":null}]}\n\n";
    for (const char* piece : {"h", "e", "l", "l", "\xF0\x9F\x98\x80"}) {
      out += std::string("data: {\"choices\": [{\"index\":0,\"delta\":{\"content\":\"") + piece +
             "\"}}],  \"x\":1.50}\r\n\r\n";
    }
    return out +
           ": a comment\n\ndata: "
           "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"note\":"
           "\"\\\"tandem\\\" usage\"}\n\n";
  }
  std::string stream(const Seen& request) const {
    return text_frames() + "data: {\"choices\":[]," + usage(request) + "}\n\ndata: [DONE]\n\n";
  }

  Behaviour behaviour;
  std::vector<Seen> seen;
  std::string epoch = "0123456789abcdef";
  std::string model = "fake";
  std::string adapters = "[]";
  std::string lineage = "lineage-1";
  std::string tokenizer;  // the identity that it tells
  int tokenizers_given = 0;
  std::string secret = "s3cret";
  int block_tokens = 16;
  bool ready = true;
  bool reads_bodies = true;  // benchmarks turn it off
  int disconnects = 0;
  Duration delay = std::chrono::milliseconds(1);
  int64_t cached = 0;
  size_t piece = 1 << 20;

 private:
  net::asio::awaitable<void> handle(net::HttpRequest& request, net::HttpResponder& responder) {
    while (frozen_) co_await thawed_.wait_for(std::chrono::seconds(5));
    if (request.headers.get("x-tandem-auth") != secret) {
      co_await responder.send(401, {},
                              R"({"error":{"message":"who are you?","code":"unauthorized"}})");
      co_return;
    }
    if (request.path == "/ready") {
      co_await responder.send(ready ? 200 : 503, {}, "{}");
    } else if (request.path == "/tandem/v1/info") {
      co_await responder.send(200, {}, info());
    } else if (request.path == "/tandem/v1/tokenizer") {
      ++tokenizers_given;
      co_await responder.send(200, {},
                              text::tokenizer_spec_to_json(text::byte_tokenizer_spec()).dump());
    } else {
      Seen mine{request.path, request.headers, request.body, {}};
      if (const auto body =
              reads_bodies ? parse_json(request.body) : Result<JsonValue>(JsonValue());
          body && body->find("tandem") != nullptr)
        mine.tandem = *body->find("tandem");
      seen.push_back(mine);
      responder.on_disconnect([this] {
        ++disconnects;
        gone_.notify();
      });
      const Behaviour now = behaviour;
      co_await now(*this, mine, responder);
    }
  }

  std::string info() const {
    return R"({"version":1,"role":")" + std::string(role_name(role_)) + R"(","epoch":")" + epoch +
           R"(","model":{"id":")" + model + R"(","context_length":4096,"adapters":)" + adapters +
           R"(,"lineage":")" + lineage + R"(","tokenizer":")" + tokenizer +
           R"("},"block_tokens":)" + std::to_string(block_tokens) +
           R"(,"handoff_address":"unix:/fake","token_capacity":16000})";
  }

  net::Reactor& reactor_;
  net::Event thawed_;
  net::Event gone_;
  WorkerRole role_;
  std::optional<net::HttpServer> server_;
  uint16_t port_ = 0;
  bool frozen_ = false;
};

}  // namespace tandem::router
