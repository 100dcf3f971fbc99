#include "net/http_client.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "net/event.h"
#include "net/http_server.h"
#include "net/stream.h"

namespace tandem::net {
namespace {

using namespace std::chrono_literals;

// Servers and client share one reactor; each test is one coroutine.
class ClientTest : public testing::Test {
 protected:
  void run(const std::function<asio::awaitable<void>()>& body) {
    HttpServer server(reactor_, {}, [this](HttpRequest& request, HttpResponder& responder) {
      return handle(request, responder);
    });
    auto port = server.listen();
    ASSERT_TRUE(port);
    port_ = *port;
    client_.emplace(reactor_);
    run_until_done(reactor_, body());
    client_.reset();
  }

  asio::awaitable<void> handle(HttpRequest& request, HttpResponder& responder) {
    ++handled_;
    remotes_.push_back(request.remote);
    responder.on_disconnect([this] {
      ++disconnects_;
      gone_.notify();
    });
    if (request.path == "/hang") {
      co_await gone_.wait_for(5s);
      co_return;
    }
    if (request.path == "/drip") {
      co_await responder.begin_stream(200, {});
      for (int i = 0; i < 3; ++i) {
        co_await responder.write("drip");
        co_await reactor_.sleep(20ms);
      }
      co_await responder.finish();
      co_return;
    }
    if (request.path == "/stall") {
      co_await responder.begin_stream(200, {});
      co_await responder.write("begin");
      co_await gone_.wait_for(5s);
      co_return;
    }
    if (request.path == "/cut") {
      co_await responder.begin_stream(200, {});
      co_await responder.write("begin");
      co_await reactor_.sleep(20ms);
      responder.abort();
      co_return;
    }
    if (request.path == "/reset") {
      responder.abort();
      co_return;
    }
    co_await responder.send(request.path == "/missing" ? 404 : 200,
                            {{"X-Echo", std::string(request.headers.get("x-echo"))}},
                            request.method + ":" + request.body);
  }

  ClientRequest request(std::string path, std::string method = "GET", std::string body = {}) {
    ClientRequest made;
    made.method = std::move(method);
    made.host = "127.0.0.1";
    made.port = port_;
    made.target = std::move(path);
    made.body = std::move(body);
    made.headers.add("X-Echo", "hello");
    return made;
  }

  Reactor reactor_;
  Event gone_{reactor_};
  std::optional<HttpClient> client_;
  uint16_t port_ = 0;
  int handled_ = 0;
  int disconnects_ = 0;
  std::vector<std::string> remotes_;
};

TEST_F(ClientTest, FetchesAndReusesTheConnection) {
  run([this]() -> asio::awaitable<void> {
    for (int i = 0; i < 3; ++i) {
      auto response = co_await fetch(*client_, request("/x", "POST", "body"));
      EXPECT_TRUE(response);
      EXPECT_EQ(response->status, 200);
      EXPECT_EQ(response->body, "POST:body");
      EXPECT_EQ(response->headers.get("X-ECHO"), "hello");
      EXPECT_EQ(client_->idle_connections(), 1U);
    }
    EXPECT_EQ(remotes_[0], remotes_[2]);
  });
}

TEST_F(ClientTest, AnEndThatHasArrivedFreesTheConnectionWithoutWaiting) {
  run([this]() -> asio::awaitable<void> {
    const auto call = client_->call(request("/x"));
    EXPECT_FALSE(call->finish());
    EXPECT_TRUE(co_await call->head());
    for (int i = 0; i < 1000 && !call->finish(); ++i) co_await reactor_.sleep(2ms);
    EXPECT_TRUE(call->finish());
    EXPECT_EQ(client_->idle_connections(), 1U);
    const auto nothing = co_await call->read_some();
    EXPECT_TRUE(nothing && nothing->empty()) << "what stood before the end is dropped";
    const auto cut = client_->call(request("/cut"));
    EXPECT_TRUE(co_await cut->head());
    EXPECT_FALSE(cut->finish());
    const auto rest = co_await cut->read_all(1000);
    EXPECT_FALSE(rest);
  });
}

TEST_F(ClientTest, HandsOverEachPieceAsItArrives) {
  run([this]() -> asio::awaitable<void> {
    auto call = client_->call(request("/drip"));
    auto head = co_await call->head();
    EXPECT_TRUE(head);
    int pieces = 0;
    std::string all;
    while (true) {
      auto piece = co_await call->read_some();
      EXPECT_TRUE(piece);
      if (!piece || piece->empty()) break;
      ++pieces;
      all += *piece;
    }
    EXPECT_EQ(all, "dripdripdrip");
    EXPECT_EQ(pieces, 3);
    EXPECT_EQ(client_->idle_connections(), 1U);
  });
}

// More pieces than one gathering write takes, and more bytes than the socket does at once.
TEST_F(ClientTest, ABodyOfManyPiecesArrivesInTheirOrder) {
  run([this]() -> asio::awaitable<void> {
    std::string text(6 << 20, 'a');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i * 11 % 26);
    const auto whole = std::make_shared<const std::string>(text);
    BodyPieces pieces;
    std::string expected = "POST:";
    for (size_t begin = 0, number = 0; begin < text.size(); ++number) {
      const size_t end = std::min(text.size(), begin + 1024 + number % 977);
      pieces.append_slice(whole, begin, end);
      pieces.append("<" + std::to_string(number) + ">");
      expected += text.substr(begin, end - begin) + "<" + std::to_string(number) + ">";
      begin = end;
    }
    EXPECT_GT(pieces.views().size(), 4096U);
    for (int i = 0; i < 2; ++i) {  // the second time over the same connection
      ClientRequest made = request("/x", "POST");
      made.body = pieces;
      const auto response = co_await fetch(*client_, std::move(made));
      EXPECT_TRUE(response);
      EXPECT_TRUE(response && response->body == expected);
    }
  });
}

TEST_F(ClientTest, LargeBodiesSurviveBothWays) {
  run([this]() -> asio::awaitable<void> {
    std::string body(5 << 20, 'a');
    for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
    auto response = co_await fetch(*client_, request("/x", "POST", body));
    EXPECT_TRUE(response);
    EXPECT_EQ(response->body, "POST:" + body);
    auto small = co_await fetch(*client_, request("/x", "POST", body), {}, 1000);
    EXPECT_FALSE(small);
    EXPECT_EQ(small.error().code, "answer_too_large");
  });
}

TEST_F(ClientTest, RefusedConnectionsAreToldApart) {
  run([this]() -> asio::awaitable<void> {
    auto listener = listen_tcp(reactor_, "127.0.0.1", 0);
    ClientRequest nobody = request("/");
    nobody.port = (*listener)->port();
    (*listener)->close();
    auto response = co_await fetch(*client_, nobody);
    EXPECT_FALSE(response);
    EXPECT_EQ(response.error().code, "connect_refused");
    EXPECT_EQ(response.error().status, 502);
  });
}

TEST_F(ClientTest, TimeoutsAreKept) {
  run([this]() -> asio::awaitable<void> {
    ClientTimeouts timeouts;
    timeouts.head = 60ms;
    timeouts.idle_body = 60ms;
    auto no_head = co_await fetch(*client_, request("/hang"), timeouts);
    EXPECT_EQ(no_head.error().code, "head_timeout");
    auto no_body = co_await fetch(*client_, request("/stall"), timeouts);
    EXPECT_EQ(no_body.error().code, "body_timeout");
    EXPECT_EQ(client_->idle_connections(), 0U);
  });
}

TEST_F(ClientTest, ACutAnswerIsAnErrorNotAnEnd) {
  run([this]() -> asio::awaitable<void> {
    auto cut = co_await fetch(*client_, request("/cut"));
    EXPECT_FALSE(cut);
    EXPECT_EQ(cut.error().code, "connection_lost");
    auto reset = co_await fetch(*client_, request("/reset", "POST", "x"));
    EXPECT_EQ(reset.error().code, "connection_lost");
    EXPECT_EQ(handled_, 2) << "a fresh connection is not tried twice";
  });
}

TEST_F(ClientTest, CancelClosesTheSocketAtOnce) {
  run([this]() -> asio::awaitable<void> {
    for (const char* path : {"/hang", "/stall"}) {
      auto call = client_->call(request(path));
      bool done = false;
      reactor_.spawn([](ClientCall& waiting, bool& ended) -> asio::awaitable<void> {
        auto head = co_await waiting.head();
        if (head) {
          auto first = co_await waiting.read_some();
          EXPECT_EQ(*first, "begin");
          auto second = co_await waiting.read_some();
          EXPECT_EQ(second.error().code, "cancelled");
        } else {
          EXPECT_EQ(head.error().code, "cancelled");
        }
        ended = true;
      }(*call, done));
      co_await reactor_.sleep(50ms);
      call->cancel();
      co_await reactor_.sleep(50ms);
      EXPECT_TRUE(done);
    }
    EXPECT_EQ(disconnects_, 2) << "the server must see each cancel";
  });
}

TEST_F(ClientTest, AStaleConnectionIsReplacedOnlyWhenThatIsSafe) {
  // A server that answers the first request on each connection and resets at the second.
  run([this]() -> asio::awaitable<void> {
    int served = 0;
    std::map<std::string, int> per_connection;
    HttpServer server(
        reactor_, {},
        [&](HttpRequest& incoming, HttpResponder& responder) -> asio::awaitable<void> {
          ++served;
          if (++per_connection[incoming.remote] > 1) {
            if (incoming.path != "/stale") co_await reactor_.sleep(80ms);  // it has worked on it
            responder.abort();
            co_return;
          }
          co_await responder.send(200, {}, "ok");
        });
    auto port = server.listen();
    const auto ask = [&](std::string method, bool replay_safe) {
      ClientRequest made = request("/", std::move(method), "x");
      made.port = *port;
      made.replay_safe = replay_safe;
      return fetch(*client_, made);
    };
    EXPECT_TRUE(co_await ask("POST", false));
    EXPECT_TRUE(co_await ask("GET", false)) << "GET may be repeated";
    EXPECT_EQ(served, 3);
    auto lost = co_await ask("POST", false);
    EXPECT_FALSE(lost) << "a POST that may have run is not repeated";
    EXPECT_EQ(served, 4);
    EXPECT_TRUE(co_await ask("POST", true));
    EXPECT_TRUE(co_await ask("POST", true)) << "unless the caller says that a repeat does no harm";
    ClientRequest stale = request("/stale", "POST", "x");
    stale.port = *port;
    EXPECT_TRUE(co_await fetch(*client_, stale)) << "or the close came at once";
    co_await reactor_.sleep(1ms);
  });
}

TEST_F(ClientTest, AnIdleConnectionThatThePeerClosesLeavesThePool) {
  run([this]() -> asio::awaitable<void> {
    std::optional<HttpServer> server;
    server.emplace(reactor_, ServerOptions{},
                   [](HttpRequest&, HttpResponder& responder) -> asio::awaitable<void> {
                     co_await responder.send(200, {}, "ok");
                   });
    auto port = server->listen();
    ClientRequest made = request("/");
    made.port = *port;
    EXPECT_TRUE(co_await fetch(*client_, made));
    EXPECT_EQ(client_->idle_connections(), 1U);
    server.reset();
    co_await reactor_.sleep(50ms);
    EXPECT_EQ(client_->idle_connections(), 0U);
  });
}

TEST_F(ClientTest, PoolsForgetAfterTheIdleTime) {
  run([this]() -> asio::awaitable<void> {
    HttpClient brief(reactor_, 50ms);
    EXPECT_TRUE(co_await fetch(brief, request("/")));
    EXPECT_EQ(brief.idle_connections(), 1U);
    co_await reactor_.sleep(120ms);
    EXPECT_EQ(brief.idle_connections(), 0U);
  });
}

// A listener that sends fixed bytes to each connection and closes.
asio::awaitable<Result<WholeResponse>> fetch_canned(Reactor& reactor, HttpClient& client,
                                                    std::string answer,
                                                    std::string method = "GET") {
  auto listener = listen_tcp(reactor, "127.0.0.1", 0);
  (*listener)->accept([&](std::unique_ptr<Stream> stream) {
    const iovec piece{answer.data(), answer.size()};
    stream->try_write(&piece, 1);
    stream->shutdown_send();
    reactor.spawn([](Reactor& loop, std::unique_ptr<Stream> kept) -> asio::awaitable<void> {
      co_await loop.sleep(50ms);
      kept->close(false);
    }(reactor, std::move(stream)));
  });
  ClientRequest made;
  made.method = std::move(method);
  made.host = "localhost";
  made.port = (*listener)->port();
  auto result = co_await fetch(client, made);
  co_await reactor.sleep(60ms);
  co_return result;
}

TEST_F(ClientTest, ReadsEveryFramingOfAnswers) {
  run([this]() -> asio::awaitable<void> {
    auto length =
        co_await fetch_canned(reactor_, *client_, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    EXPECT_EQ(length->body, "hi");
    auto none =
        co_await fetch_canned(reactor_, *client_, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(none->body, "");
    auto to_end = co_await fetch_canned(reactor_, *client_, "HTTP/1.0 200 OK\r\n\r\nuntil the end");
    EXPECT_EQ(to_end->body, "until the end");
    auto chunked = co_await fetch_canned(
        reactor_, *client_,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
    EXPECT_EQ(chunked->body, "abc");
    auto interim = co_await fetch_canned(
        reactor_, *client_,
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx");
    EXPECT_EQ(interim->status, 201);
    EXPECT_EQ(interim->body, "x");
    auto no_content = co_await fetch_canned(reactor_, *client_, "HTTP/1.1 204 No Content\r\n\r\n");
    EXPECT_EQ(no_content->status, 204);
    auto head = co_await fetch_canned(reactor_, *client_,
                                      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD");
    EXPECT_EQ(head->body, "");
    auto cut =
        co_await fetch_canned(reactor_, *client_, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi");
    EXPECT_EQ(cut.error().code, "connection_lost");
    auto cut_chunk = co_await fetch_canned(
        reactor_, *client_, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi");
    EXPECT_EQ(cut_chunk.error().code, "connection_lost");
    auto junk = co_await fetch_canned(reactor_, *client_, "SSH-2.0-x\r\n\r\n");
    EXPECT_EQ(junk.error().code, "bad_response");
  });
}

TEST(Url, ParsesAndRefuses) {
  auto url = parse_url("http://127.0.0.1:8080/v1/");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "127.0.0.1");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(url->base, "/v1");
  EXPECT_EQ(url->origin(), "http://127.0.0.1:8080");
  EXPECT_EQ(parse_url("host")->port, 80);
  EXPECT_EQ(parse_url("https://host/x")->port, 443);
  EXPECT_TRUE(parse_url("https://host:8443")->tls);
  EXPECT_EQ(parse_url("https://host")->origin(), "https://host:443");
  EXPECT_EQ(parse_url("http://[::1]:9")->host, "::1");
  EXPECT_EQ(parse_url("http://[::1]:9")->origin(), "http://[::1]:9");
  for (const char* bad : {"", "http://", "http://x:0", "http://x:65536", "http://x:y",
                          "http://x:", "http://a b", "http://u@h"}) {
    EXPECT_FALSE(parse_url(bad)) << bad;
  }
}

TEST(Blocking, RunsOneRequestOnTheCallersThread) {
  Reactor server_reactor;
  HttpServer server(server_reactor, {},
                    [](HttpRequest&, HttpResponder& responder) -> asio::awaitable<void> {
                      co_await responder.begin_stream(200, {});
                      co_await responder.write("a");
                      co_await responder.write("b");
                      co_await responder.finish();
                    });
  auto port = server.listen();
  std::thread thread([&] { server_reactor.run(); });
  ClientRequest request;
  request.host = "127.0.0.1";
  request.port = *port;
  auto whole = blocking_request(request);
  EXPECT_TRUE(whole);
  EXPECT_EQ(whole->body, "ab");
  int status = 0;
  auto stopped = blocking_request(
      request, {}, [&](const ClientHead& head) { status = head.status; },
      [](std::string_view) { return false; });
  EXPECT_EQ(status, 200);
  EXPECT_EQ(stopped.error().code, "cancelled");
  server_reactor.stop();
  thread.join();
}

}  // namespace
}  // namespace tandem::net
