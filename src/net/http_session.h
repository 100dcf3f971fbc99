// Inside of http_server.cc: one connection of a server and, while a handler runs, its responder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/connection.h"
#include "net/heap.h"
#include "net/http_parse.h"
#include "net/http_server.h"

namespace tandem::net {

// What the sessions of one server share.
struct ServerShared {
  explicit ServerShared(Reactor& reactor) : heap(reactor) {}

  HeapKeeper heap;
  ServerOptions options;
  HttpHandler handler;
  HttpGate gate;
  observe::Counter refused_connections, refused_bodies, head_timeouts, body_timeouts,
      write_timeouts;
  observe::Gauge open_connections, buffered_bodies;
  size_t body_bytes = 0;  // of requests that are being read or handled
};

// A whole answer's head. `framing`: the line of the body's length or coding; `keep_alive_seconds`
// 0: the connection closes after it.
std::string response_head(int status, const Headers& headers, std::string_view framing,
                          int64_t keep_alive_seconds, int minor_version);

class Session final : public HttpResponder, public std::enable_shared_from_this<Session> {
 public:
  Session(Reactor& reactor, ServerShared& shared, std::unique_ptr<Stream> stream);

  asio::awaitable<void> serve();

  asio::awaitable<Status> send(int status, Headers headers, std::string body) override;
  using HttpResponder::begin_stream;
  using HttpResponder::finish;
  asio::awaitable<Status> begin_stream(int status, Headers headers,
                                       std::string_view first) override;
  asio::awaitable<Status> whole_stream(int status, Headers headers,
                                       std::string_view bytes) override;
  asio::awaitable<Status> write(std::string_view bytes) override;
  asio::awaitable<Status> finish(std::string_view last) override;
  void abort() override;
  void on_disconnect(std::function<void()> action) override;
  bool client_gone() const override { return connection_->gone(); }
  bool started() const override { return started_; }

  bool running() const { return running_; }
  bool idle() const { return idle_; }
  void announce_close() { closing_after_ = true; }
  void close();

 private:
  static TimePoint now() { return std::chrono::steady_clock::now(); }
  bool keep_alive() const { return !closing_ && !closing_after_ && parser_.keep_alive(); }
  int64_t keep_alive_seconds() const;
  void disconnected();

  const Headers& known_headers();
  void identify(Headers& headers);
  asio::awaitable<Status> stream(int status, Headers headers, std::string_view first, bool last);
  asio::awaitable<Status> put(std::initializer_list<std::string_view> pieces);
  asio::awaitable<void> refuse(Error error);
  // Feeds the parser until `done` or `until(body bytes so far)`. False when the connection should
  // end (an error has then been answered).
  asio::awaitable<bool> read_until(const std::function<bool()>& done,
                                   const std::function<TimePoint()>& until,
                                   observe::Counter timeouts);
  asio::awaitable<bool> read_head();
  asio::awaitable<bool> read_body();
  // Says how much of a body this session has in memory. False: all of them have too much.
  bool hold(size_t bytes);
  asio::awaitable<bool> continue_if_expected();
  asio::awaitable<bool> answer_from_head(HttpRefusal refusal);
  std::optional<HttpRefusal> refusal_of_head() const;
  void take_head();
  bool body_expected() const;
  asio::awaitable<void> run_handler();
  asio::awaitable<void> linger();

  Reactor& reactor_;
  ServerShared& shared_;
  std::shared_ptr<Connection> connection_;
  MessageParser parser_;
  HttpRequest request_;
  std::string remote_;  // asked for once
  Headers cors_;
  std::function<void()> on_disconnect_;
  Duration read_pause_{};  // between two reads of this body
  size_t held_ = 0;        // bytes of a body, counted in shared_
  int minor_version_ = 1;
  bool head_request_ = false;
  bool started_ = false;
  bool finished_ = false;
  bool no_body_ = false;
  bool chunked_ = false;
  bool closing_ = false;        // nothing more after this answer
  bool closing_after_ = false;  // draining
  bool running_ = false;
  bool idle_ = true;
};

}  // namespace tandem::net
