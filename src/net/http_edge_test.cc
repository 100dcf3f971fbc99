// What the server refuses, and what it says to browsers, agents and slow clients.
#include "net/server_fixture.h"

namespace tandem::net {
namespace {

TEST_F(ServerTest, SmugglingAndMalformedRequestsAreRefused) {
  start();
  expect_error(
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "400", "bad_request");
  expect_error(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
      "5\r\n\r\n0\r\n\r\n",
      "400", "bad_request");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
               "400", "bad_request");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello", "400",
               "bad_request");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "400", "bad_request");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", "400",
               "bad_request");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", "400",
               "unsupported_transfer_coding");
  expect_error("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "400",
               "unsupported_transfer_coding");
  expect_error("GET / HTTP/1.1\r\nHost : x\r\n\r\n", "400", "bad_request");
  expect_error("GET / HTTP/1.1\r\n\r\n", "400", "bad_request");
  expect_error("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", "bad_request");
  expect_error("GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505", "http_version_not_supported");
  expect_error("BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "405", "method_not_allowed");
  expect_error("CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", "405", "method_not_allowed");
  expect_error("\x16\x03\x01\x02\r\n\r\n", "400", "bad_request");
  using namespace std::string_view_literals;
  const std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string_view bad :
       {"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost: x\r\n\tfolded: b\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"sv, "GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n"sv, "GET / HTTP/1.1\nHost: x\n\n"sv,
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc: d\r\n\r\n"sv}) {
    expect_error(bad, "400", "bad_request");
  }
  for (const char* const body :
       {"0x5\r\nhello\r\n0\r\n\r\n", "5 6\r\nhello\r\n0\r\n\r\n", "5\t;a\r\nhelloX\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n", "5 5\nhello\r\n0\r\n\r\n", "5\rXhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "ffffffffffffffff0\r\nx", "\r\nhello\r\n",
        "0\r\nX: y\n\r\n", "g\r\n"}) {
    expect_error(chunked + body, "400", "bad_request");
  }
  expect_error(chunked + "1;" + std::string(300, 'e') + "\r\n", "400", "bad_request");
  expect_error(chunked + "0\r\nX: " + std::string(70000, 't'), "431", "headers_too_large");
  EXPECT_EQ(handled_, 0);
}

TEST_F(ServerTest, ChunkedBodiesArriveWholeHoweverTheyAreCut) {
  start();
  const std::string text =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"
      "5 ;name=value\r\nhello\r\n00A \r\n, chunked \r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n";
  EXPECT_TRUE(exchange(text).ends_with("POST:hello, chunked !"));
  RawClient client(port_);
  for (const char c : text) client.send(std::string_view(&c, 1));
  EXPECT_TRUE(client.read_until("POST:hello, chunked !"));
}

TEST_F(ServerTest, LongTargetsAre414) {
  ServerOptions options;
  options.max_target_bytes = 100;
  start(options);
  EXPECT_EQ(status_of(exchange("GET /" + std::string(99, 'a') +
                               " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")),
            "200");
  expect_error("GET /" + std::string(100, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", "414",
               "uri_too_long");
}

TEST_F(ServerTest, TheGateAnswersWithoutTheBodyAndWithoutAStall) {
  start({}, [](const HttpRequest& request) -> std::optional<HttpRefusal> {
    if (request.headers.get("authorization") == "yes") return std::nullopt;
    return HttpRefusal{401, {{"WWW-Authenticate", "Bearer"}}, "no"};
  });
  RawClient expecting(port_);
  expecting.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(expecting.read_to_end(1000)) << "the connection closes: a body may still come";
  EXPECT_EQ(status_of(expecting.text()), "401");
  EXPECT_EQ(expecting.text().find("100 Continue"), std::string::npos);
  RawClient large(port_);
  large.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  ASSERT_TRUE(large.read_until("HTTP/1.1 401", 500));
  RawClient small(port_);
  small.send(
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
      "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: yes\r\nContent-Length: 2\r\n\r\nhi");
  ASSERT_TRUE(small.read_until("POST:hi")) << "a small body is dropped and the connection lives on";
  EXPECT_EQ(handled_, 1);
}

TEST_F(ServerTest, AWebSocketUpgradeIs426OnEveryPath) {
  start();
  for (const char* const path : {"/", "/v1/responses", "/stream"}) {
    const std::string response =
        exchange(std::string("GET ") + path +
                 " HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "
                 "WebSocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
                 "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(status_of(response), "426");
    EXPECT_NE(response.find("Upgrade: HTTP/1.1"), std::string::npos);
    EXPECT_TRUE(response.ends_with("GET:")) << "the connection stays usable: " << response;
  }
}

TEST_F(ServerTest, PagesOfAllowedOriginsReadAnswersAndErrors) {
  ServerOptions options;
  options.cors = *CorsPolicy::parse({"local", "https://chat.example.org"});
  start(options, [](const HttpRequest& request) -> std::optional<HttpRefusal> {
    if (request.path != "/secret") return std::nullopt;
    return HttpRefusal{401, {}, "no"};
  });
  const auto ask = [&](const std::string& method, const std::string& path,
                       const std::string& fields) {
    return exchange(method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields +
                    "\r\n");
  };
  for (const char* const origin :
       {"http://localhost:3000", "https://[::1]", "https://chat.example.org"}) {
    const std::string field = std::string("Origin: ") + origin + "\r\n";
    const std::string allow = std::string("Access-Control-Allow-Origin: ") + origin + "\r\n";
    for (const char* const path : {"/", "/secret", "/stream"}) {
      const std::string response = ask("GET", path, field);
      EXPECT_NE(response.find(allow), std::string::npos) << response;
      EXPECT_NE(response.find("Vary: Origin\r\n"), std::string::npos);
    }
    const std::string preflight =
        ask("OPTIONS", "/secret",
            field +
                "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
                "authorization,content-type\r\n");
    EXPECT_EQ(status_of(preflight), "204") << "asked without a key";
    EXPECT_NE(preflight.find(allow), std::string::npos);
    EXPECT_EQ(preflight.find(allow), preflight.rfind(allow)) << "once";
    EXPECT_NE(preflight.find("Access-Control-Allow-Headers: authorization,content-type\r\n"),
              std::string::npos);
  }
  for (const char* const origin : {"https://evil.example", "http://localhost.evil.example",
                                   "http://localhost:80@evil.example", "null"}) {
    const std::string field = std::string("Origin: ") + origin + "\r\n";
    EXPECT_EQ(ask("GET", "/", field).find("Access-Control"), std::string::npos) << origin;
    EXPECT_EQ(status_of(ask("OPTIONS", "/", field + "Access-Control-Request-Method: POST\r\n")),
              "403");
  }
  EXPECT_EQ(ask("GET", "/", "").find("Access-Control"), std::string::npos);
  EXPECT_FALSE(CorsPolicy::parse({"example.org"}));
  EXPECT_FALSE(CorsPolicy::parse({"https://example.org/path"}));
  EXPECT_EQ(CorsPolicy::parse({"*"})->allow("https://any.example"), "*");
}

TEST_F(ServerTest, AllBodiesTogetherAreBounded) {
  ServerOptions options;
  options.max_body_bytes = 1000;
  options.max_buffered_bytes = 1500;
  start(options);
  const auto head = [](const char* path) {
    return std::string("POST ") + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
  };
  const auto gauge = [&](const std::string& bytes) {
    return eventually([&] {
      return metrics_.render().find("tandem_http_body_bytes " + bytes + "\n") != std::string::npos;
    });
  };
  RawClient reading(port_);  // its body is on its way
  reading.send(head("/") + std::string(400, 'a'));
  EXPECT_TRUE(gauge("400"));
  RawClient running(port_);  // its body is handled
  running.send(head("/wait") + std::string(1000, 'b'));
  EXPECT_TRUE(gauge("1400"));
  RawClient late(port_);
  late.send(head("/") + std::string(1000, 'c'));
  ASSERT_TRUE(late.read_to_end());
  EXPECT_EQ(status_of(late.text()), "503") << late.text();
  EXPECT_NE(late.text().find("Retry-After: 1"), std::string::npos);
  EXPECT_NE(metrics_.render().find("tandem_http_bodies_refused_total 1\n"), std::string::npos);
  EXPECT_TRUE(gauge("1400"));
  loop_.on_reactor([&] { stop_streaming_->notify(); });
  EXPECT_TRUE(running.read_until("late"));
  EXPECT_TRUE(gauge("400"));
  reading.send(std::string(600, 'a'));
  EXPECT_TRUE(reading.read_until("POST:aaa"));
  EXPECT_TRUE(gauge("0")) << metrics_.render();
  RawClient leaving(port_);
  leaving.send(head("/") + std::string(10, 'd'));
  EXPECT_TRUE(gauge("10"));
  leaving.close();
  EXPECT_TRUE(gauge("0"));
}

TEST_F(ServerTest, ABodyMustKeepALeastRate) {
  ServerOptions options;
  options.body_grace = 150ms;
  options.least_rate = 1000;
  start(options);
  const std::string head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n";
  RawClient steady(port_);
  steady.send(head);
  RawClient trickling(port_);
  trickling.send(head);
  for (int i = 0; i < 8; ++i) {
    std::this_thread::sleep_for(50ms);
    steady.send(std::string(50, 'a'));
    trickling.send("a");
  }
  EXPECT_TRUE(steady.read_until("POST:aaaa")) << steady.text();
  ASSERT_TRUE(trickling.read_to_end());
  EXPECT_EQ(status_of(trickling.text()), "408");
  EXPECT_NE(metrics_.render().find("tandem_http_timeouts_total{waited_for=\"body\"} 1"),
            std::string::npos);
}

TEST_F(ServerTest, AnswersSayHowLongTheConnectionIsKept) {
  ServerOptions options;
  options.keep_alive = 95s;
  start(options);
  RawClient client(port_);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(client.read_until("GET:"));
  EXPECT_NE(client.text().find("Keep-Alive: timeout=95\r\n"), std::string::npos);
  EXPECT_GE(ServerOptions{}.keep_alive, 90s);
}

}  // namespace
}  // namespace tandem::net
