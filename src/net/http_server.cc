#include "net/http_server.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <set>
#include <utility>

#include "base/reply_text.h"
#include "net/connection.h"
#include "net/http_parse.h"
#include "observe/log.h"

namespace tandem::net {

namespace {

constexpr Duration kLingerTime = std::chrono::seconds(2);
constexpr size_t kLingerBytes = 4UL << 20;

bool body_forbidden(int status) { return status < 200 || status == 204 || status == 304; }

std::string head_text(int status, const Headers& headers, std::string_view framing, bool keep_alive,
                      int minor_version) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
  text += http_reason(status);
  text += "\r\n";
  for (const auto& [name, value] : headers) {
    // Framing is ours; a value with a line break would split the response.
    if (equal_ignoring_case(name, "content-length") ||
        equal_ignoring_case(name, "transfer-encoding") || equal_ignoring_case(name, "connection")) {
      continue;
    }
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) continue;
    text += name;
    text += ": ";
    text += value;
    text += "\r\n";
  }
  text += framing;
  if (!keep_alive) {
    text += "Connection: close\r\n";
  } else if (minor_version == 0) {
    text += "Connection: keep-alive\r\n";
  }
  text += "\r\n";
  return text;
}

}  // namespace

// One connection and, while a handler runs, its responder.
class Session final : public HttpResponder, public std::enable_shared_from_this<Session> {
 public:
  Session(Reactor& reactor, const ServerOptions& options, std::unique_ptr<Stream> stream)
      : options_(options),
        connection_(std::make_shared<Connection>(reactor, std::move(stream))),
        parser_(MessageParser::Kind::kRequest, {options.max_header_bytes, options.max_body_bytes}) {
  }

  asio::awaitable<void> serve(const HttpHandler& handler) {
    connection_->start();
    while (!closing_ && co_await read_request()) {
      co_await run_handler(handler);
      parser_.reset();
    }
    if (!connection_->gone()) co_await linger();
    connection_->close();
  }

  asio::awaitable<Status> send(int status, Headers headers, std::string body) override {
    if (started_) co_return internal_error("the answer was already started");
    started_ = true;
    finished_ = true;
    std::string framing;
    if (!body_forbidden(status))
      framing = "Content-Length: " + std::to_string(body.size()) + "\r\n";
    const std::string text = head_text(status, headers, framing, keep_alive(), minor_version_);
    const bool with_body = !head_request_ && !body_forbidden(status);
    co_return co_await put({text, with_body ? std::string_view(body) : std::string_view()});
  }

  asio::awaitable<Status> begin_stream(int status, Headers headers) override {
    if (started_) co_return internal_error("the answer was already started");
    started_ = true;
    no_body_ = head_request_ || body_forbidden(status);
    chunked_ = minor_version_ > 0 && !body_forbidden(status);
    if (!chunked_ && !no_body_) closing_ = true;  // HTTP/1.0: the close is the end
    const std::string text =
        head_text(status, headers, chunked_ ? "Transfer-Encoding: chunked\r\n" : "", keep_alive(),
                  minor_version_);
    co_return co_await put({text});
  }

  asio::awaitable<Status> write(std::string_view bytes) override {
    if (!started_ || finished_) co_return internal_error("no answer is being streamed");
    if (bytes.empty() || no_body_) co_return client_gone() ? gone() : Status();
    if (!chunked_) co_return co_await put({bytes});
    char size[20];
    char* const end = std::to_chars(size, size + 16, bytes.size(), 16).ptr;
    end[0] = '\r';
    end[1] = '\n';
    co_return co_await put(
        {std::string_view(size, static_cast<size_t>(end - size) + 2), bytes, "\r\n"});
  }

  asio::awaitable<Status> finish() override {
    if (!started_ || finished_) co_return internal_error("no answer is being streamed");
    finished_ = true;
    if (no_body_ || !chunked_) co_return Status();
    co_return co_await put({"0\r\n\r\n"});
  }

  void abort() override {
    finished_ = started_ = closing_ = true;
    connection_->close(true);
  }

  void on_disconnect(std::function<void()> action) override {
    on_disconnect_ = std::move(action);
    if (client_gone() && on_disconnect_) std::exchange(on_disconnect_, nullptr)();
  }

  bool client_gone() const override { return connection_->gone(); }
  bool started() const override { return started_; }

  bool running() const { return running_; }
  bool idle() const { return idle_; }
  void announce_close() { closing_after_ = true; }
  void close() {
    const auto self = shared_from_this();
    connection_->close(running_);
    if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
  }

 private:
  static Status gone() {
    return make_error(499, "client_gone", "the client closed the connection");
  }
  static TimePoint now() { return std::chrono::steady_clock::now(); }
  bool keep_alive() const { return !closing_ && !closing_after_ && parser_.keep_alive(); }

  asio::awaitable<Status> put(std::initializer_list<std::string_view> pieces) {
    if (!client_gone() && co_await connection_->write(pieces, options_.write_timeout))
      co_return Status();
    closing_ = true;
    // Too slow is as good as gone; half an answer must not look whole.
    if (!connection_->closed()) connection_->close(true);
    if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
    co_return gone();
  }

  asio::awaitable<void> refuse(Error error) {
    closing_ = true;
    started_ = finished_ = false;
    minor_version_ = 1;
    head_request_ = parser_.head_complete() && parser_.method() == "HEAD";
    co_await send(error.status, error_headers(error), error_body(error));
  }

  // Feeds the parser until `done`. False when the connection should end (an error has then been
  // answered).
  template <typename Done>
  asio::awaitable<bool> read_until(Done done, TimePoint until) {
    while (true) {
      while (!connection_->buffered().empty() && !done()) {
        const size_t used = parser_.feed(connection_->buffered());
        connection_->consume(used);
        if (parser_.error()) {
          co_await refuse(*parser_.error());
          co_return false;
        }
        if (used == 0) break;
      }
      if (done()) co_return true;
      switch (co_await connection_->wait_more(until - now())) {
        case Connection::Wait::kData:
          break;
        case Connection::Wait::kTimeout:
          co_await refuse(Error{408, "request_timeout", "the request did not arrive in time"});
          co_return false;
        case Connection::Wait::kEnd:
        case Connection::Wait::kFailed:
          closing_ = true;
          co_return false;
      }
    }
  }

  asio::awaitable<bool> read_request() {
    idle_ = connection_->buffered().empty();
    while (connection_->buffered().empty()) {
      if (co_await connection_->wait_more(options_.keep_alive) == Connection::Wait::kData) continue;
      closing_ = true;
      connection_->close();
      co_return false;
    }
    idle_ = false;
    if (!co_await read_until([this] { return parser_.head_complete(); },
                             now() + options_.header_timeout))
      co_return false;
    head_request_ = parser_.method() == "HEAD";
    minor_version_ = parser_.minor_version();
    if (const std::string* expect = parser_.headers().find("expect"); expect != nullptr) {
      if (!equal_ignoring_case(*expect, "100-continue")) {
        co_await refuse(
            Error{417, "expectation_failed", "only Expect: 100-continue is understood"});
        co_return false;
      }
      // The byte that ends the head is still in the buffer (MessageParser); more means that the
      // body comes already.
      if (minor_version_ > 0 && connection_->buffered().size() <= 1 &&
          !co_await connection_->write({"HTTP/1.1 100 Continue\r\n\r\n"}, options_.write_timeout)) {
        closing_ = true;
        co_return false;
      }
    }
    co_return co_await read_until([this] { return parser_.complete(); },
                                  now() + options_.body_timeout);
  }

  asio::awaitable<void> run_handler(const HttpHandler& handler) {
    HttpRequest request;
    request.method = parser_.method();
    request.target = parser_.target();
    std::string_view target = request.target;
    if (target.starts_with("http://")) {  // absolute form, as proxies send it
      const size_t slash = target.find('/', 7);
      target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    }
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
    request.headers = std::move(parser_.headers());
    request.body = std::move(parser_.body());
    request.remote = connection_->remote();
    started_ = finished_ = no_body_ = chunked_ = false;
    running_ = true;
    connection_->on_gone([this] {
      if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
    });
    bool failed = false;
    try {
      co_await handler(request, *this);
    } catch (const std::exception& error) {
      observe::log_error("a handler of {} failed: {}", request.path, error.what());
      failed = true;
    } catch (...) {
      observe::log_error("a handler of {} failed", request.path);
      failed = true;
    }
    on_disconnect_ = nullptr;
    connection_->on_gone({});
    if (!keep_alive()) closing_ = true;
    if (!started_ && !client_gone()) {
      if (!failed) observe::log_error("the handler of {} did not answer", request.path);
      const Error error{500, "internal_error", "the server failed to handle the request"};
      co_await send(error.status, error_headers(error), error_body(error));
    } else if (!finished_) {
      abort();
    }
    running_ = false;
    if (client_gone()) closing_ = true;
  }

  // Lets the client read the last answer before the socket goes: closing with unread input would
  // reset it away.
  asio::awaitable<void> linger() {
    connection_->shutdown_send();
    const TimePoint until = now() + kLingerTime;
    size_t discarded = 0;
    while (discarded < kLingerBytes) {
      discarded += connection_->buffered().size();
      connection_->consume(connection_->buffered().size());
      if (co_await connection_->wait_more(until - now()) != Connection::Wait::kData) break;
    }
  }

  const ServerOptions& options_;
  std::shared_ptr<Connection> connection_;
  MessageParser parser_;
  std::function<void()> on_disconnect_;
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

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(Reactor& reactor, ServerOptions options, HttpHandler handler)
      : reactor_(reactor),
        options_(std::move(options)),
        handler_(std::move(handler)),
        empty_(reactor),
        retry_(reactor, [this] { accept_next(); }) {}

  Result<uint16_t> listen() {
    TANDEM_TRY(listener, listen_tcp(reactor_, options_.host, options_.port));
    listener_ = std::move(listener);
    accept_next();
    return listener_->port();
  }

  void close_listener() {
    if (!listener_) return;
    listener_->close();
    listener_.reset();
    retry_.disarm();
  }

  void close_all() {
    const std::set<std::shared_ptr<Session>> sessions = sessions_;
    for (const auto& session : sessions) session->close();
  }

  asio::awaitable<bool> drain(Duration limit) {
    const auto self = shared_from_this();
    close_listener();
    const std::set<std::shared_ptr<Session>> sessions = sessions_;
    for (const auto& session : sessions) {
      session->announce_close();
      if (session->idle()) session->close();
    }
    const TimePoint until = std::chrono::steady_clock::now() + limit;
    while (!sessions_.empty() &&
           co_await empty_.wait_for(until - std::chrono::steady_clock::now())) {
    }
    const bool clean = running() == 0;
    close_all();
    co_return clean;
  }

  size_t connections() const { return sessions_.size(); }
  size_t running() const {
    return static_cast<size_t>(
        std::count_if(sessions_.begin(), sessions_.end(),
                      [](const auto& session) { return session->running(); }));
  }

 private:
  void accept_next() {
    if (!listener_) return;
    listener_->accept([weak = weak_from_this()](std::unique_ptr<Stream> stream) {
      const auto self = weak.lock();
      if (!self || !self->listener_) return;
      if (!stream) {  // most likely out of descriptors: some will be freed
        self->retry_.arm(std::chrono::milliseconds(50));
        return;
      }
      self->admit(std::move(stream));
      self->accept_next();
    });
  }

  void admit(std::unique_ptr<Stream> stream) {
    if (sessions_.size() >= options_.max_connections) {
      const Error error{503, "too_many_connections", "too many connections; retry later"};
      const std::string body = error_body(error);
      const std::string text =
          head_text(error.status, error_headers(error),
                    "Content-Length: " + std::to_string(body.size()) + "\r\n", false, 1) +
          body;
      const iovec piece{const_cast<char*>(text.data()), text.size()};
      stream->try_write(&piece, 1);
      stream->shutdown_send();
      return;
    }
    auto session = std::make_shared<Session>(reactor_, options_, std::move(stream));
    sessions_.insert(session);
    reactor_.spawn(run(shared_from_this(), std::move(session)));
  }

  static asio::awaitable<void> run(std::shared_ptr<Impl> self, std::shared_ptr<Session> session) {
    co_await session->serve(self->handler_);
    self->sessions_.erase(session);
    if (self->sessions_.empty()) self->empty_.notify();
  }

  Reactor& reactor_;
  ServerOptions options_;
  HttpHandler handler_;
  std::unique_ptr<Listener> listener_;
  std::set<std::shared_ptr<Session>> sessions_;
  Event empty_;
  Deadline retry_;
};

HttpServer::HttpServer(Reactor& reactor, ServerOptions options, HttpHandler handler)
    : impl_(std::make_shared<Impl>(reactor, std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() {
  impl_->close_listener();
  impl_->close_all();
}

Result<uint16_t> HttpServer::listen() { return impl_->listen(); }
void HttpServer::close_listener() { impl_->close_listener(); }
asio::awaitable<bool> HttpServer::drain(Duration limit) { return impl_->drain(limit); }
size_t HttpServer::connections() const { return impl_->connections(); }
size_t HttpServer::running_requests() const { return impl_->running(); }

}  // namespace tandem::net
