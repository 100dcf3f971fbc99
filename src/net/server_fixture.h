// ServerTest: an echo server with a few special paths, on a reactor of its own, and raw clients.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/json_value.h"
#include "net/event.h"
#include "net/http_server.h"
#include "net/raw_client.h"

namespace tandem::net {

using namespace std::chrono_literals;

class ServerTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}, HttpGate gate = {}) {
    options.metrics = &metrics_;
    loop_.on_reactor([&] {
      stop_streaming_.emplace(loop_.reactor());
      server_.emplace(
          loop_.reactor(), options,
          [this](HttpRequest& request, HttpResponder& responder) {
            return handle(request, responder);
          },
          gate);
      auto port = server_->listen();
      ASSERT_TRUE(port);
      port_ = *port;
    });
  }
  void TearDown() override {
    loop_.on_reactor([&] {
      if (stop_streaming_) stop_streaming_->notify();
      server_.reset();
    });
    std::this_thread::sleep_for(20ms);
    loop_.stop();
  }

  asio::awaitable<void> handle(HttpRequest& request, HttpResponder& responder) {
    ++handled_;
    responder.on_disconnect([this] { ++disconnects_; });
    if (request.path == "/throw") throw std::runtime_error("boom");
    if (request.path == "/silent") co_return;
    if (request.path == "/half") {
      co_await responder.begin_stream(200, {});
      co_await responder.write("part");
      co_return;
    }
    if (request.path == "/wait") {
      co_await stop_streaming_->wait_for(10s);
      co_await responder.send(200, {}, "late");
      ++finished_;
      co_return;
    }
    if (request.path == "/flood") {
      co_await responder.begin_stream(200, {});
      const std::string block(1 << 16, 'x');
      while (co_await responder.write(block)) written_ += block.size();
      ++finished_;
      co_return;
    }
    if (request.path == "/whole") {
      co_await responder.whole_stream(200, {{"Content-Type", "text/event-stream"}}, request.body);
      co_return;
    }
    if (request.path == "/stream") {
      co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream"}});
      co_await responder.write("one");
      co_await responder.write("");
      co_await responder.write("two");
      co_await responder.finish();
      co_return;
    }
    co_await responder.send(
        200, {{"X-Path", request.path}, {"X-Query", request.query}, {"X-Bad", "a\r\nb"}},
        request.method + ":" + request.body);
  }

  static std::string status_of(const std::string& response) { return response.substr(9, 3); }
  std::string exchange(std::string_view bytes) {
    RawClient client(port_);
    client.send(bytes);
    EXPECT_TRUE(client.read_to_end());
    return client.text();
  }
  void expect_error(std::string_view bytes, const std::string& status, const std::string& code) {
    const std::string response = exchange(bytes);
    EXPECT_EQ(status_of(response), status) << response;
    const auto body = parse_json(response.substr(response.find("\r\n\r\n") + 4));
    ASSERT_TRUE(body) << response;
    EXPECT_EQ(body->find("error")->find("code")->as_string(), code);
    EXPECT_NE(response.find("Connection: close"), std::string::npos);
  }
  bool eventually(const std::function<bool()>& condition,
                  std::chrono::milliseconds limit = 3000ms) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
  size_t connections() {
    size_t count = 0;
    loop_.on_reactor([&] { count = server_->connections(); });
    return count;
  }

  observe::Metrics metrics_;
  std::atomic<int> handled_ = 0, finished_ = 0, disconnects_ = 0;
  std::atomic<size_t> written_ = 0;
  uint16_t port_ = 0;
  ReactorThread loop_;
  std::optional<Event> stop_streaming_;
  std::optional<HttpServer> server_;
};

}  // namespace tandem::net
