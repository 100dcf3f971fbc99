#include "net/server_fixture.h"

namespace tandem::net {
namespace {

TEST_F(ServerTest, AnswersWithTheBodyAndKeepsTheConnection) {
  start();
  RawClient client(port_);
  for (int i = 0; i < 3; ++i) {
    client.send("POST /a/b?c=d&e HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    ASSERT_TRUE(client.read_until("POST:hello"));
    const std::string response = client.take();
    EXPECT_EQ(status_of(response), "200");
    EXPECT_NE(response.find("X-Path: /a/b\r\n"), std::string::npos);
    EXPECT_NE(response.find("X-Query: c=d&e\r\n"), std::string::npos);
    EXPECT_EQ(response.find("X-Bad"), std::string::npos)
        << "a line break in a value must not reach the wire";
  }
}

TEST_F(ServerTest, AcceptsARequestSplitAtEveryByte) {
  start();
  RawClient client(port_);
  const std::string request =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
  for (const char byte : request) {
    client.send(std::string_view(&byte, 1));
    std::this_thread::sleep_for(200us);
  }
  ASSERT_TRUE(client.read_until("POST:abcde")) << client.text();
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawClient client(port_);
  std::string many;
  for (int i = 0; i < 50; ++i) {
    many += "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  }
  client.send(many);
  ASSERT_TRUE(client.read_until("POST:59"));
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = client.text().find("POST:" + std::to_string(10 + i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

TEST_F(ServerTest, StreamsInChunks) {
  start();
  RawClient client(port_);
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.read_until("\r\n0\r\n\r\n"));
  EXPECT_TRUE(client.text().ends_with("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"))
      << client.text();
}

TEST_F(ServerTest, AStreamThatIsWholeAtOnceIsAStreamLikeOthers) {
  start();
  RawClient client(port_);
  client.send("POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
  ASSERT_TRUE(client.read_until("\r\n0\r\n\r\n"));
  EXPECT_TRUE(client.take().ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
  client.send("POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  ASSERT_TRUE(client.read_until("0\r\n\r\n"));
  EXPECT_TRUE(client.text().ends_with("\r\n\r\n0\r\n\r\n")) << client.text();
  const std::string old = exchange("POST /whole HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_TRUE(old.ends_with("\r\n\r\nabc")) << old;
}

TEST_F(ServerTest, LargeBodiesArriveByteForByteHoweverTheyAreRead) {
  start();
  RawClient client(port_);
  std::string all;
  std::string expected;
  for (const size_t size :
       {size_t{60000}, size_t{1}, size_t{1} << 20, size_t{65536}, size_t{300}}) {
    std::string body = std::to_string(size) + ":";
    while (body.size() < size) body += std::to_string(body.size()) + ",";
    body.resize(size);
    all +=
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n" + body;
    expected += "POST:" + body;
  }
  std::thread sender([&] { client.send(all); });
  std::string got;
  const bool came = client.read_until("\r\n\r\nPOST:" + expected.substr(expected.size() - 300));
  sender.join();
  ASSERT_TRUE(came);
  for (size_t at = 0; (at = client.text().find("POST:", at)) != std::string::npos;) {
    const size_t end = std::min(client.text().find("HTTP/1.1 200", at), client.text().size());
    got += client.text().substr(at, end - at);
    at = end;
  }
  EXPECT_TRUE(got == expected);
}

TEST_F(ServerTest, StreamsToAnOldClientUntilTheClose) {
  start();
  const std::string response = exchange("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(response.ends_with("\r\n\r\nonetwo")) << response;
  EXPECT_EQ(response.find("Transfer-Encoding"), std::string::npos);
}

TEST_F(ServerTest, HeadHasTheLengthAndNoBody) {
  start();
  RawClient client(port_);
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.read_until("GET:"));
  EXPECT_NE(client.text().find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_EQ(client.text().find("HEAD:"), std::string::npos);
}

TEST_F(ServerTest, ExpectContinueIsAnsweredAtOnceAndATooLargeBodyWithoutReadingIt) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  start(options);
  RawClient client(port_);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue\r\n\r\n", 500)) << client.text();
  client.send("abc");
  ASSERT_TRUE(client.read_until("POST:abc"));
  RawClient large(port_);
  large.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(large.read_until("HTTP/1.1 400", 500)) << large.text();
  EXPECT_EQ(large.text().find("100 Continue"), std::string::npos);
}

TEST_F(ServerTest, LimitsAreExact) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  start(options);
  const std::string close = "\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(status_of(exchange("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000" + close +
                               std::string(1000, 'a'))),
            "200");
  expect_error(
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'a'), "400",
      "request_too_large");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                   std::string(1001, 'a') + "\r\n0\r\n\r\n",
               "400", "request_too_large");
  expect_error("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(70000, 'a') + "\r\n\r\n", "431",
               "headers_too_large");
  std::string fields;
  for (int i = 0; i < 400; ++i) fields += "a: b\r\n";
  expect_error("GET / HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n", "431", "headers_too_large");
}

TEST_F(ServerTest, AnswersThatTheServerMakesItselfAreIdentified) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 4096;
  options.cors = *CorsPolicy::parse({"https://page.example"});
  options.identify = [](const Headers& headers) {
    return "id-" + std::string(headers.get("x-request-id"));
  };
  start(options);
  const std::string named = "Host: x\r\nx-request-id: seven\r\nOrigin: https://page.example\r\n";
  for (const std::string& request : {
           "POST / HTTP/1.1\r\n" + named + "Content-Length: 1001\r\n\r\n",
           "POST / HTTP/1.1\r\n" + named + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" +
               std::string(1001, 'a') + "\r\n0\r\n\r\n",
           "POST / HTTP/1.1\r\n" + named + "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
           "POST / HTTP/1.1\r\n" + named + "Expect: more\r\nConnection: close\r\n\r\n",
           "GET / HTTP/1.1\r\n" + named + "X: " + std::string(5000, 'a') + "\r\n\r\n",
           "GET / HTTP/1.1\r\n" + named +
               "Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
       }) {
    const std::string answer = exchange(request);
    EXPECT_NE(answer.find("x-request-id: id-seven\r\n"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Access-Control-Allow-Origin: https://page.example\r\n"),
              std::string::npos)
        << answer;
  }
  EXPECT_NE(exchange("nonsense\r\n\r\n").find("x-request-id: id-\r\n"), std::string::npos);
}

TEST_F(ServerTest, AnUpgradeOfferIsDeclinedAndAnswered) {
  start();
  const std::string response = exchange(
      "POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: "
      "h2c\r\nHTTP2-Settings: AA\r\n"
      "Content-Length: 2\r\n\r\nhi");
  EXPECT_EQ(status_of(response), "200") << response;
  EXPECT_TRUE(response.ends_with("POST:hi"));
}

TEST_F(ServerTest, SlowHeadsAndBodiesTimeOut) {
  ServerOptions options;
  options.header_timeout = 100ms;
  options.body_timeout = 100ms;
  options.keep_alive = 200ms;
  start(options);
  expect_error("GET / HTTP/1.1\r\nHos", "408", "request_timeout");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel", "408",
               "request_timeout");
  RawClient idle(port_);
  EXPECT_TRUE(idle.read_to_end(2000));
  EXPECT_EQ(idle.text(), "") << "an idle connection is closed without a word";
}

TEST_F(ServerTest, HandlerFailuresBecome500AndNeverEndTheProcess) {
  start();
  RawClient client(port_);
  client.send(
      "GET /throw HTTP/1.1\r\nHost: x\r\n\r\nGET /silent HTTP/1.1\r\nHost: x\r\n\r\nGET / "
      "HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.read_until("GET:"));
  EXPECT_NE(client.text().find("HTTP/1.1 500"), client.text().rfind("HTTP/1.1 500"));
}

TEST_F(ServerTest, AnUnfinishedStreamIsResetNotEnded) {
  start();
  RawClient client(port_);
  client.send("GET /half HTTP/1.1\r\nHost: x\r\n\r\n");
  client.read_to_end();
  EXPECT_TRUE(client.was_reset());
  EXPECT_EQ(client.text().find("\r\n0\r\n\r\n"), std::string::npos);
}

TEST_F(ServerTest, ADisconnectIsNoticedWhileNothingIsWritten) {
  start();
  for (const bool hard : {false, true}) {
    disconnects_ = 0;
    RawClient client(port_);
    client.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    const int before = handled_;
    ASSERT_TRUE(eventually([&] { return handled_ > before || handled_ > 0; }));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(disconnects_, 0);
    const auto start_time = std::chrono::steady_clock::now();
    hard ? client.reset() : client.close();
    ASSERT_TRUE(eventually([&] { return disconnects_ == 1; }));
    EXPECT_LT(std::chrono::steady_clock::now() - start_time, 200ms);
    loop_.on_reactor([&] { stop_streaming_->notify(); });
    ASSERT_TRUE(eventually([&] { return connections() == 0; }));
    EXPECT_EQ(disconnects_, 1);
  }
}

TEST_F(ServerTest, ASlowReaderIsPushedBackAndThenDropped) {
  ServerOptions options;
  options.write_timeout = 300ms;
  options.least_rate = 64 << 20;
  start(options);
  RawClient client(port_);
  client.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return finished_ == 1; }));
  EXPECT_LT(written_, 32U << 20)
      << "the kernel's buffers bound what a reader that does not read can cost";
  EXPECT_EQ(disconnects_, 1);
  ASSERT_TRUE(eventually([&] { return connections() == 0; }));
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitGet503AndAreCounted) {
  ServerOptions options;
  options.max_connections = 2;
  start(options);
  RawClient a(port_);
  RawClient b(port_);
  ASSERT_TRUE(eventually([&] { return connections() == 2; }));
  RawClient c(port_);
  EXPECT_TRUE(c.read_to_end());
  EXPECT_EQ(status_of(c.text()), "503");
  EXPECT_NE(metrics_.render().find("tandem_http_connections_refused_total 1"), std::string::npos);
  a.close();
  ASSERT_TRUE(eventually([&] { return connections() == 1; }));
  RawClient d(port_);
  d.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(d.read_until("GET:"));
}

TEST_F(ServerTest, DrainClosesIdleConnectionsAndLetsRequestsEnd) {
  start();
  RawClient idle(port_);
  RawClient busy(port_);
  busy.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return handled_ == 1; }));
  std::atomic<int> drained = -1;
  loop_.reactor().spawn([](HttpServer& server, std::atomic<int>& result) -> asio::awaitable<void> {
    result = co_await server.drain(5s) ? 1 : 0;
  }(*server_, drained));
  EXPECT_TRUE(idle.read_to_end());
  EXPECT_EQ(drained, -1);
  EXPECT_FALSE(RawClient(port_).connected());
  loop_.on_reactor([&] { stop_streaming_->notify(); });
  EXPECT_TRUE(busy.read_until("late"));
  EXPECT_NE(busy.text().find("Connection: close"), std::string::npos);
  busy.close();
  ASSERT_TRUE(eventually([&] { return drained == 1; }));
}

TEST_F(ServerTest, DrainCutsWhatDoesNotEnd) {
  start();
  RawClient busy(port_);
  busy.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return handled_ == 1; }));
  std::atomic<int> drained = -1;
  loop_.reactor().spawn([](HttpServer& server, std::atomic<int>& result) -> asio::awaitable<void> {
    result = co_await server.drain(100ms) ? 1 : 0;
  }(*server_, drained));
  ASSERT_TRUE(eventually([&] { return drained == 0; }));
  EXPECT_TRUE(busy.read_to_end());
  EXPECT_EQ(disconnects_, 1);
}

TEST_F(ServerTest, ManyConnectionsOpenAndCloseWithoutLeaks) {
  start();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 20; ++i) {
      clients.push_back(std::make_unique<RawClient>(port_));
      clients.back()->send(i % 3 == 0 ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                                      : "POST / HTTP/1.1\r\nHost: x\r\nContent-Le");
    }
    for (size_t i = 0; i < clients.size(); ++i)
      i % 2 == 0 ? clients[i]->reset() : clients[i]->close();
  }
  EXPECT_TRUE(eventually([&] { return connections() == 0; }));
}

}  // namespace
}  // namespace tandem::net
