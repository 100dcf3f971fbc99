// HttpClient: HTTP/1.1 requests from one reactor, over a keep-alive pool per origin.
//
//   auto call = client.call(ClientRequest{...}, ClientTimeouts{});
//   Result<ClientHead> head = co_await call->head();        // connects, sends, waits for the head
//   while (true) {
//     Result<std::string> bytes = co_await call->read_some();  // empty: the end
//     ...
//   }
//
// Thread-safety: everything on the reactor's thread. A call must outlive the coroutine that waits
// in it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/body_pieces.h"
#include "base/clock.h"
#include "base/result.h"
#include "net/headers.h"
#include "net/reactor.h"

namespace tandem::net {

// "http://host:port/base" or "https://..." taken apart; port defaults to 80 or 443, base has no
// trailing '/'. Errors: 400 "bad_url".
struct Url {
  std::string host;
  uint16_t port = 80;
  std::string base;
  bool tls = false;
  std::string origin() const;  // "http://host:port"
};
Result<Url> parse_url(std::string_view text);

struct ClientRequest {
  std::string method = "GET";
  std::string host;
  uint16_t port = 80;
  bool tls = false;
  std::string target = "/";
  Headers headers;  // Host and Content-Length are added
  BodyPieces body;  // written as it lies, without being joined
  // A reused connection that dies before one byte of answer is replaced by a fresh one, once, when
  // the request cannot have been taken (the write failed, or the close came right behind it) or
  // when this says a repeat does no harm. GET and HEAD always may.
  bool replay_safe = false;
};

struct ClientTimeouts {
  Duration connect = std::chrono::seconds(2);
  Duration head =
      std::chrono::seconds(1800);  // request sent to head received; also bounds the send
  Duration idle_body = std::chrono::seconds(1800);  // between two reads of the body
};

struct ClientHead {
  int status = 0;
  Headers headers;
};

// Error codes of a call: "connect_refused" (nobody listens), "connect_failed", "connect_timeout",
// "head_timeout", "body_timeout", "connection_lost" (closed before the answer's end),
// "bad_response", "cancelled", "tls_failed".
class ClientCall {
 public:
  virtual ~ClientCall() = default;  // an unfinished call closes its connection

  virtual asio::awaitable<Result<ClientHead>> head() = 0;
  // Whatever has arrived, at most 64 KiB, transfer coding removed; empty at the end.
  virtual asio::awaitable<Result<std::string>> read_some() = 0;
  // The rest of the body; an error (502 "bad_response") beyond `limit` bytes.
  virtual asio::awaitable<Result<std::string>> read_all(size_t limit) = 0;
  // The end, when it has arrived already: true, and the connection is free for others. What stands
  // before it is dropped. Never waits.
  virtual bool finish() = 0;
  // Closes the socket now; a coroutine waiting in this call gets "cancelled". Harmless when
  // finished.
  virtual void cancel() = 0;
};

class HttpClient {
 public:
  explicit HttpClient(Reactor& reactor, Duration pool_idle = std::chrono::seconds(60),
                      size_t pool_per_origin = 256);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  std::unique_ptr<ClientCall> call(ClientRequest request, ClientTimeouts timeouts = {});
  void drop_idle(const std::string& host,
                 uint16_t port);  // forget pooled connections (a worker restarted)
  // Opens connections until `count` to that origin are idle, so that the first requests need not
  // wait for them; what cannot be opened within `limit` is left.
  void warm(const Url& url, size_t count, Duration limit = std::chrono::seconds(2));
  size_t idle_connections() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

struct WholeResponse {
  int status = 0;
  Headers headers;
  std::string body;
};

// head() and read_all() in one.
asio::awaitable<Result<WholeResponse>> fetch(HttpClient& client, ClientRequest request,
                                             ClientTimeouts timeouts = {},
                                             size_t limit = 64ULL << 20);

// For command-line programs: runs one request on a private reactor on the calling thread. `on_head`
// and `on_body` (may be empty) see the answer as it arrives; when on_body returns false the call is
// cancelled. Without on_body the body is collected.
Result<WholeResponse> blocking_request(const ClientRequest& request,
                                       const ClientTimeouts& timeouts = {},
                                       const std::function<void(const ClientHead&)>& on_head = {},
                                       const std::function<bool(std::string_view)>& on_body = {});

}  // namespace tandem::net
