// What the tests of the mocks share: servers that the test starts and ways to ask them.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "mock/mock_server.h"

namespace tandem::mock {

using net::asio::awaitable;

class MockTest : public ::testing::Test {
 public:
  std::shared_ptr<MockServer> server(Dialect dialect, Role role, MockOptions options = {}) {
    options.dialect = dialect;
    options.role = role;
    // A test that wants a slow prefill says so.
    if (options.speed.prefill_rate > 1000) options.speed.prefill_rate = 200000;
    options.speed.step = std::chrono::milliseconds(1);
    auto made = std::make_shared<MockServer>(reactor_, client_, options);
    EXPECT_TRUE(made->start());
    return made;
  }

  awaitable<Result<net::WholeResponse>> post(const MockServer& to, std::string path,
                                             std::string body, net::Headers headers = {},
                                             Duration head = std::chrono::seconds(20),
                                             Duration patience = std::chrono::seconds(20)) {
    net::ClientRequest request;
    request.method = "POST";
    request.host = "127.0.0.1";
    request.port = to.port();
    request.target = std::move(path);
    request.headers = std::move(headers);
    request.headers.add("Content-Type", "application/json");
    request.body = std::move(body);
    return net::fetch(client_, std::move(request), {std::chrono::seconds(2), head, patience});
  }

  // Both legs at once; the answers of prefill and decode.
  awaitable<std::pair<net::WholeResponse, net::WholeResponse>> both(
      const MockServer& prefill, std::string first, const MockServer& decode, std::string second,
      std::string path, net::Headers headers = {}) {
    auto early = std::make_shared<Result<net::WholeResponse>>(internal_error("never"));
    net::Event done(reactor_);
    reactor_.spawn([](MockTest* test, const MockServer* to, std::string at, std::string body,
                      net::Headers with, std::shared_ptr<Result<net::WholeResponse>> out,
                      net::Event* event) -> awaitable<void> {
      *out = co_await test->post(*to, std::move(at), std::move(body), std::move(with));
      event->notify();
    }(this, &prefill, path, std::move(first), headers, early, &done));
    auto late = co_await post(decode, path, std::move(second), headers);
    co_await done.wait();
    EXPECT_TRUE(*early) << early->error().message;
    EXPECT_TRUE(late) << late.error().message;
    co_return std::pair(early->value_or(net::WholeResponse{}), late.value_or(net::WholeResponse{}));
  }

  void run(awaitable<void> body) { net::run_until_done(reactor_, std::move(body)); }

  static std::string content(const std::string& body) {
    const auto json = parse_json(body);
    if (!json || json->find("choices") == nullptr) return "no choices: " + body;
    const JsonValue& choice = json->find("choices")->items().at(0);
    const JsonValue* const message = choice.find("message");
    return message != nullptr ? message->find("content")->as_string()
                              : choice.find("text")->as_string();
  }
  static int64_t count(const JsonValue& state, const char* name) {
    const JsonValue* const rooms = state.find("rooms");
    const JsonValue* const found =
        rooms->find(name) != nullptr ? rooms->find(name) : state.find(name);
    return found->as_integer().value_or(-1);
  }
  static void expect_clean(const MockServer& server) {
    EXPECT_EQ(count(server.state(), "running"), 0);
    EXPECT_EQ(count(server.state(), "open"), 0);
    EXPECT_EQ(count(server.state(), "waiting"), 0);
  }

  net::Reactor reactor_;
  net::HttpClient client_{reactor_};
};

inline constexpr const char* kChat = "/v1/chat/completions";
inline const std::string kMessages =
    R"("messages":[{"role":"user","content":"what is the password of the west gate, please?"}])";

}  // namespace tandem::mock
