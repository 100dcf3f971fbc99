#include "net/http_server.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/reply_text.h"
#include "net/event.h"
#include "net/http_session.h"

namespace tandem::net {

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(Reactor& reactor, ServerOptions options, HttpHandler handler, HttpGate gate)
      : reactor_(reactor),
        shared_(reactor),
        empty_(reactor),
        retry_(reactor, [this] { accept_next(); }) {
    shared_.options = std::move(options);
    shared_.options.max_buffered_bytes =
        std::max(shared_.options.max_buffered_bytes, shared_.options.max_body_bytes);
    shared_.handler = std::move(handler);
    shared_.gate = std::move(gate);
    if (shared_.options.metrics != nullptr) declare_metrics(*shared_.options.metrics);
  }

  Result<uint16_t> listen() {
    const ServerOptions& options = shared_.options;
    if (!options.tls_certificate.empty() || !options.tls_key.empty()) {
      TANDEM_TRY(identity, TlsIdentity::load(options.tls_certificate, options.tls_key));
      identity_ = std::move(identity);
    }
    TANDEM_TRY(listener, listen_tcp(reactor_, shared_.options.host, shared_.options.port));
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

  void announce_close() {
    announcing_ = true;
    for (const auto& session : sessions_) session->announce_close();
  }

  void close_all() {
    const std::set<std::shared_ptr<Session>> sessions = sessions_;
    for (const auto& session : sessions) session->close();
  }

  asio::awaitable<bool> drain(Duration limit) {
    const auto self = shared_from_this();
    close_listener();
    announce_close();
    const std::set<std::shared_ptr<Session>> sessions = sessions_;
    for (const auto& session : sessions) {
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
      if (self->identity_) stream = self->identity_->serve(self->reactor_, std::move(stream));
      if (stream) self->admit(std::move(stream));
      self->accept_next();
    });
  }

  void declare_metrics(observe::Metrics& metrics) {
    shared_.open_connections = metrics.gauge("tandem_http_connections", "Open client connections.");
    shared_.refused_connections = metrics.counter("tandem_http_connections_refused_total",
                                                  "Connections beyond the limit, answered 503.");
    shared_.buffered_bodies = metrics.gauge(
        "tandem_http_body_bytes", "Bytes of request bodies that are being read or handled.");
    shared_.refused_bodies =
        metrics.counter("tandem_http_bodies_refused_total",
                        "Requests answered 503: all bodies together were too large.");
    const auto timeouts = [&](const char* what) {
      return metrics.counter("tandem_http_timeouts_total",
                             "Connections closed because the client was too slow.",
                             {{"waited_for", what}});
    };
    shared_.head_timeouts = timeouts("head");
    shared_.body_timeouts = timeouts("body");
    shared_.write_timeouts = timeouts("write");
  }

  void admit(std::unique_ptr<Stream> stream) {
    if (sessions_.size() >= shared_.options.max_connections) {
      shared_.refused_connections.add();
      const Error error{503, "too_many_connections", "too many connections; retry later"};
      const std::string body = error_body(error);
      const std::string text =
          response_head(error.status, error_headers(error),
                        "Content-Length: " + std::to_string(body.size()) + "\r\n", 0, 1) +
          body;
      const iovec piece{const_cast<char*>(text.data()), text.size()};
      stream->try_write(&piece, 1);
      stream->shutdown_send();
      return;
    }
    auto session = std::make_shared<Session>(reactor_, shared_, std::move(stream));
    if (announcing_) session->announce_close();
    sessions_.insert(session);
    shared_.open_connections.set(static_cast<double>(sessions_.size()));
    reactor_.spawn(run(shared_from_this(), std::move(session)));
  }

  static asio::awaitable<void> run(std::shared_ptr<Impl> self, std::shared_ptr<Session> session) {
    co_await session->serve();
    self->sessions_.erase(session);
    self->shared_.open_connections.set(static_cast<double>(self->sessions_.size()));
    if (self->sessions_.empty()) self->empty_.notify();
  }

  Reactor& reactor_;
  ServerShared shared_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<const TlsIdentity> identity_;
  std::set<std::shared_ptr<Session>> sessions_;
  bool announcing_ = false;
  Event empty_;
  Deadline retry_;
};

HttpServer::HttpServer(Reactor& reactor, ServerOptions options, HttpHandler handler, HttpGate gate)
    : impl_(std::make_shared<Impl>(reactor, std::move(options), std::move(handler),
                                   std::move(gate))) {}

HttpServer::~HttpServer() {
  impl_->close_listener();
  impl_->close_all();
}

Result<uint16_t> HttpServer::listen() { return impl_->listen(); }
void HttpServer::close_listener() { impl_->close_listener(); }
void HttpServer::announce_close() { impl_->announce_close(); }
asio::awaitable<bool> HttpServer::drain(Duration limit) { return impl_->drain(limit); }
size_t HttpServer::connections() const { return impl_->connections(); }
size_t HttpServer::running_requests() const { return impl_->running(); }

}  // namespace tandem::net
