// HttpServer: HTTP/1.1 on one reactor. Keep-alive (its length is told in every answer), pipelining
// (one request runs at a time, later bytes are kept), chunked bodies both ways, Expect:
// 100-continue, HEAD, CORS. Bodies are read whole before the handler runs; what the gate or a limit
// refuses is answered from the head alone. An upgrade to WebSocket is a 426 on every path.
//
// Bounds: bytes and number of header fields, target, body, all bodies together, connections, and a
// time limit on each of reading a head, reading a body (also a least rate), writing and idling.
// What breaks them is answered with an OpenAI-style error object (400, 405, 408, 414, 431, 503,
// 505) and the connection closes. A request with both Content-Length and Transfer-Encoding, or with
// two lengths, is refused.
//
// Thread-safety: everything on the reactor's thread; listen() may also be called before run().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "net/cors.h"
#include "net/headers.h"
#include "net/reactor.h"
#include "observe/metrics.h"

namespace tandem::net {

struct HttpRequest {
  std::string method;
  std::string target;  // as sent: path and query
  std::string path;    // before '?', as sent
  std::string query;   // after '?', as sent
  Headers headers;
  std::string body;    // whole, transfer coding removed
  std::string remote;  // "address:port" of the client
};

// The one answer to a request. Valid until the handler returns. Exactly one of send(),
// begin_stream() and whole_stream(). Errors mean that the client is gone or too slow; the handler
// should then just return.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  // A whole answer. Content-Length is set here; Content-Type is the caller's.
  virtual asio::awaitable<Status> send(int status, Headers headers, std::string body) = 0;
  // A streamed answer, chunked. The head is sent at once, with the `first` bytes in the same
  // packet.
  virtual asio::awaitable<Status> begin_stream(int status, Headers headers,
                                               std::string_view first) = 0;
  asio::awaitable<Status> begin_stream(int status, Headers headers) {
    return begin_stream(status, std::move(headers), {});
  }
  // Begins it and ends it, in one packet.
  virtual asio::awaitable<Status> whole_stream(int status, Headers headers,
                                               std::string_view bytes) = 0;
  // Returns when the kernel took the bytes: back-pressure. `bytes` must live until then.
  virtual asio::awaitable<Status> write(std::string_view bytes) = 0;
  // The end, in the same packet as the `last` bytes.
  virtual asio::awaitable<Status> finish(std::string_view last) = 0;
  asio::awaitable<Status> finish() { return finish({}); }
  // Closes the connection at once (RST), so that a client cannot take a cut answer for a whole one.
  virtual void abort() = 0;

  // `action` runs once on the reactor as soon as the client closes or resets while the handler
  // runs, even when nothing is being written (at once, inside this call, when that has already
  // happened). It must not wait. Replaces an earlier action; dropped when the handler returns.
  virtual void on_disconnect(std::function<void()> action) = 0;
  virtual bool client_gone() const = 0;
  virtual bool started() const = 0;  // some part of the answer has been sent
};

using HttpHandler = std::function<asio::awaitable<void>(HttpRequest&, HttpResponder&)>;

// A whole answer that needs no body of the request.
struct HttpRefusal {
  int status = 500;
  Headers headers;
  std::string body;
};
// Looks at the head of each request (the body is still empty). What it returns is the answer: the
// body is then not read (a small one that is on its way is dropped), and no 100 Continue is sent.
using HttpGate = std::function<std::optional<HttpRefusal>(const HttpRequest&)>;

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: the kernel picks
  size_t max_body_bytes = 64ULL << 20;
  // Of all bodies that are being read or handled (not less than max_body_bytes); beyond: 503.
  size_t max_buffered_bytes = 1ULL << 30;
  size_t max_header_bytes = 64ULL << 10;
  size_t max_header_fields = 256;
  size_t max_target_bytes = 16ULL << 10;
  size_t max_connections = 4096;                       // beyond: 503 and close
  Duration header_timeout = std::chrono::seconds(30);  // first byte of a head to its end
  // A body has `body_grace` plus its bytes at `least_rate` (per second) of time, `body_timeout` at
  // most; a write has `write_timeout` plus its bytes at the same rate.
  Duration body_grace = std::chrono::seconds(30);
  size_t least_rate = 16ULL << 10;
  Duration body_timeout = std::chrono::minutes(10);
  Duration keep_alive = std::chrono::seconds(120);    // idle between requests, and before the first
  Duration write_timeout = std::chrono::seconds(60);  // to a client that does not read
  CorsPolicy cors = {};                               // by default no page of another origin
  std::string tls_certificate = {};                   // PEM files, both or none
  std::string tls_key = {};
  // Names a request by its headers (of a broken head: those that were read): x-request-id of the
  // answers that the server makes itself. Empty: they have none.
  std::function<std::string(const Headers&)> identify = {};
  // For servers that pretend to read slowly: asked once for each request with a body; the body is
  // then read with so long a pause before each piece (at most kReadHighWater). Zero, empty: at
  // once.
  std::function<Duration(const HttpRequest&)> read_pause = {};
  // tandem_http_connections, tandem_http_connections_refused_total, tandem_http_body_bytes,
  // tandem_http_bodies_refused_total and tandem_http_timeouts_total{waited_for}; null: not counted.
  // Outlives the server.
  observe::Metrics* metrics = nullptr;
};

class HttpServer {
 public:
  HttpServer(Reactor& reactor, ServerOptions options, HttpHandler handler, HttpGate gate = {});
  // Closes the listener and every connection; running handlers see a gone client and finish later
  // on the reactor, so the handler's captures must outlive the reactor's run.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  Result<uint16_t> listen();  // the port bound. Errors also: 400 "bad_certificate"
  void close_listener();
  // Every answer from now on tells its client that the connection closes after it.
  void announce_close();
  // Stops accepting, closes idle connections, lets running requests end (announcing Connection:
  // close), and after `limit` closes what is left. True when nothing had to be cut.
  asio::awaitable<bool> drain(Duration limit);
  size_t connections() const;       // open now
  size_t running_requests() const;  // handlers running now

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// The fields of every error answer (its body is base's error_body): Content-Type, WWW-Authenticate
// on 401, Retry-After on 429 and 503, "x-should-retry: false" where a repetition cannot help.
Headers error_headers(const Error& error);
std::string_view http_reason(int status);

}  // namespace tandem::net
