#include "net/http_client.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "net/connection.h"
#include "net/http_parse.h"

namespace tandem::net {

namespace {

constexpr size_t kUsualHead = 1024;
constexpr size_t kReadPiece = 64UL << 10;
// Of an answer, while nobody takes it: with the piece that was taken, 64 KiB.
constexpr size_t kUnread = 32UL << 10;
constexpr Duration kStaleWindow = std::chrono::milliseconds(50);

// Names a pool.
std::string pool_name(const std::string& host, uint16_t port, bool tls) {
  return (tls ? "tls " : "") + host + ":" + std::to_string(port);
}

tl::unexpected<Error> cancelled_error() {
  return make_error(499, "cancelled", "the call was cancelled");
}
tl::unexpected<Error> lost_error() {
  return make_error(502, "connection_lost",
                    "the upstream closed the connection before its answer's end");
}

}  // namespace

// Idle connections by origin. Each keeps its read pending, so one that the peer closes leaves the
// pool at once.
class HttpClient::Impl : public std::enable_shared_from_this<HttpClient::Impl> {
 public:
  Impl(Reactor& reactor_in, Duration idle, size_t per_origin)
      : reactor(reactor_in),
        idle_(idle),
        per_origin_(per_origin),
        sweep_(reactor_in, [this] { sweep(); }) {}

  std::shared_ptr<Connection> take(const std::string& origin) {
    auto& idle = pool_[origin];
    while (!idle.empty()) {
      std::shared_ptr<Connection> connection = std::move(idle.back().connection);
      idle.pop_back();
      connection->on_gone({});
      connection->on_data({});
      if (!connection->gone() && connection->buffered().empty()) return connection;
      connection->close();
    }
    return nullptr;
  }

  void give(const std::string& origin, std::shared_ptr<Connection> connection) {
    auto& idle = pool_[origin];
    if (closed_ || connection->gone() || !connection->buffered().empty() ||
        idle.size() >= per_origin_) {
      connection->close();
      return;
    }
    // What lies here is closed before this goes, and then calls nobody. (Two words: they need no
    // memory of their own.)
    const auto forget = [this, key = connection.get()] { remove(key); };
    connection->on_gone(forget);
    connection->on_data(forget);  // nobody asked: the peer is confused
    idle.push_back({std::move(connection), std::chrono::steady_clock::now()});
    if (!sweeping_) {
      sweeping_ = true;
      sweep_.arm(idle_);
    }
  }

  void remove(const Connection* key) {
    for (auto& [origin, idle] : pool_) {
      const auto found = std::find_if(idle.begin(), idle.end(), [&](const Idle& entry) {
        return entry.connection.get() == key;
      });
      if (found == idle.end()) continue;
      const std::shared_ptr<Connection> connection = std::move(found->connection);
      idle.erase(found);
      return connection->close();
    }
  }

  void warm(const Url& url, size_t count, Duration limit) {
    const std::string origin = pool_name(url.host, url.port, url.tls);
    const auto known = pool_.find(origin);
    const size_t have = known == pool_.end() ? 0 : known->second.size();
    const auto connect_to = url.tls ? connect_tls : connect_tcp;
    for (size_t i = have; i < std::min(count, per_origin_); ++i) {
      connect_to(reactor, url.host, url.port, limit,
                 [weak = weak_from_this(), origin](Result<std::unique_ptr<Stream>> made) {
                   const auto self = weak.lock();
                   if (!self || !made) return;
                   auto connection = std::make_shared<Connection>(self->reactor, std::move(*made));
                   connection->limit_unread(kUnread);
                   connection->start();
                   self->give(origin, std::move(connection));
                 });
    }
  }

  void drop(const std::string& origin) {
    const auto found = pool_.find(origin);
    if (found == pool_.end()) return;
    for (const Idle& entry : found->second) entry.connection->close();
    pool_.erase(found);
  }

  void close() {
    closed_ = true;
    while (!pool_.empty()) drop(pool_.begin()->first);
  }

  size_t size() const {
    size_t total = 0;
    for (const auto& [origin, idle] : pool_) total += idle.size();
    return total;
  }

  Reactor& reactor;

 private:
  struct Idle {
    std::shared_ptr<Connection> connection;
    TimePoint since;
  };

  // One deadline for all: the ones that lay longest stand first.
  void sweep() {
    const TimePoint now = std::chrono::steady_clock::now();
    TimePoint oldest = TimePoint::max();
    for (auto& [origin, idle] : pool_) {
      const auto fresh =
          std::ranges::find_if(idle, [&](const Idle& entry) { return entry.since + idle_ > now; });
      for (auto entry = idle.begin(); entry != fresh; ++entry) entry->connection->close();
      idle.erase(idle.begin(), fresh);
      if (!idle.empty()) oldest = std::min(oldest, idle.front().since);
    }
    sweeping_ = oldest != TimePoint::max();
    if (sweeping_) sweep_.arm(oldest + idle_ - now);
  }

  Duration idle_;
  size_t per_origin_;
  Deadline sweep_;
  bool sweeping_ = false;
  bool closed_ = false;
  std::map<std::string, std::vector<Idle>> pool_;
};

namespace {

template <typename Pool>
class Call final : public ClientCall {
 public:
  Call(std::shared_ptr<Pool> pool, ClientRequest request, ClientTimeouts timeouts)
      : pool_(std::move(pool)),
        request_(std::move(request)),
        timeouts_(timeouts),
        origin_(pool_name(request_.host, request_.port, request_.tls)),
        parser_(MessageParser::Kind::kResponse, {}),
        connected_(pool_->reactor) {}

  ~Call() override {
    if (cancel_connect_) cancel_connect_();
    if (connection_) connection_->close();
  }

  asio::awaitable<Result<ClientHead>> head() override {
    const TimePoint until = now() + timeouts_.head;
    const std::string text = head_text();
    bool fresh_only = false;
    while (true) {
      if (cancelled_) co_return cancelled_error();
      bool reused = false;
      if (!fresh_only) connection_ = pool_->take(origin_);
      if (connection_) {
        reused = true;
      } else if (Status connected = co_await connect(); !connected) {
        co_return tl::unexpected(std::move(connected).error());
      }
      const TimePoint sent = now();
      std::vector<std::string_view> pieces = request_.body.views();
      pieces.insert(pieces.begin(), text);
      const bool written = co_await connection_->write_all(pieces, until - now());
      Result<ClientHead> result = co_await read_head(until);
      if (result) request_.body = {};  // it will not be sent again
      if (result || cancelled_) co_return result;
      const bool silent = !parser_.started() && result.error().code == "connection_lost";
      // A close without a byte right behind the request means that the peer had given the
      // connection up before: it did not even begin.
      const bool stale = now() - sent < kStaleWindow;
      const bool harmless = !written || stale || request_.replay_safe || request_.method == "GET" ||
                            request_.method == "HEAD";
      drop();
      if (!(reused && silent && harmless)) co_return result;
      fresh_only = true;
      parser_.reset();
    }
  }

  asio::awaitable<Result<std::string>> read_some() override {
    while (true) {
      if (cancelled_) co_return cancelled_error();
      if (!parser_.body().empty()) co_return take_piece();
      if (finished_) co_return std::string();
      if (!connection_) co_return lost_error();
      if (pull()) continue;
      if (parser_.error()) {
        drop();
        co_return tl::unexpected(*parser_.error());
      }
      if (parser_.complete()) {
        release();
        continue;
      }
      switch (co_await connection_->wait_more(timeouts_.idle_body)) {
        case Connection::Wait::kData:
          break;
        case Connection::Wait::kEnd:
          parser_.feed_end();
          break;
        case Connection::Wait::kFailed:
          if (cancelled_) co_return cancelled_error();
          drop();
          co_return lost_error();
        case Connection::Wait::kTimeout:
          drop();
          co_return make_error(504, "body_timeout", "the upstream stopped sending its answer");
      }
    }
  }

  asio::awaitable<Result<std::string>> read_all(size_t limit) override {
    std::string body;
    while (true) {
      Result<std::string> piece = co_await read_some();
      if (!piece) co_return piece;
      if (piece->empty()) co_return body;
      if (body.size() + piece->size() > limit) {
        drop();
        co_return make_error(502, "answer_too_large", "the upstream's answer is too large");
      }
      body += *piece;
    }
  }

  bool finish() override {
    while (connection_ && pull()) parser_.body().clear();
    if (connection_ && parser_.complete()) release();
    if (finished_) parser_.body().clear();  // came with the head
    return finished_;
  }

  void cancel() override {
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    if (cancel_connect_) cancel_connect_();
    if (connection_) connection_->close();
  }

 private:
  static TimePoint now() { return std::chrono::steady_clock::now(); }

  std::string head_text() const {
    std::string text;
    text.reserve(kUsualHead);
    text += request_.method;
    text += ' ';
    text += request_.target;
    text += " HTTP/1.1\r\n";
    if (request_.headers.count("host") == 0) {
      const bool v6 = request_.host.find(':') != std::string::npos;
      text += v6 ? "Host: [" : "Host: ";
      text += request_.host;
      if (v6) text += ']';
      if (request_.port != (request_.tls ? 443 : 80)) text += ":" + std::to_string(request_.port);
      text += "\r\n";
    }
    for (const auto& [name, value] : request_.headers) {
      if (equal_ignoring_case(name, "content-length") ||
          equal_ignoring_case(name, "transfer-encoding"))
        continue;
      if (has_line_break(value)) continue;
      text += name;
      text += ": ";
      text += value;
      text += "\r\n";
    }
    if (!request_.body.empty() || request_.method == "POST" || request_.method == "PUT") {
      text += "Content-Length: " + std::to_string(request_.body.size()) + "\r\n";
    }
    return text + "\r\n";
  }

  asio::awaitable<Status> connect() {
    std::optional<Result<std::unique_ptr<Stream>>> outcome;
    const auto connect_to = request_.tls ? connect_tls : connect_tcp;
    cancel_connect_ = connect_to(pool_->reactor, request_.host, request_.port, timeouts_.connect,
                                 [&outcome, this](Result<std::unique_ptr<Stream>> result) {
                                   outcome = std::move(result);
                                   connected_.notify();
                                 });
    while (!outcome) co_await connected_.wait();
    cancel_connect_ = nullptr;
    if (cancelled_) co_return cancelled_error();
    if (!*outcome) co_return tl::unexpected(std::move(*outcome).error());
    connection_ = std::make_shared<Connection>(pool_->reactor, std::move(**outcome));
    connection_->limit_unread(kUnread);
    connection_->start();
    co_return Status();
  }

  asio::awaitable<Result<ClientHead>> read_head(TimePoint until) {
    if (request_.method == "HEAD") parser_.expect_no_body();
    while (true) {
      if (cancelled_) co_return cancelled_error();
      if (!connection_->buffered().empty())
        connection_->consume(parser_.feed(connection_->buffered()));
      if (parser_.error()) co_return tl::unexpected(*parser_.error());
      if (parser_.head_complete()) {
        if (parser_.status() >= 200) break;
        // An interim answer: its message is complete once fed one more byte; the final one follows.
        while (!parser_.complete() && !connection_->buffered().empty()) {
          connection_->consume(parser_.feed(connection_->buffered()));
        }
        if (parser_.complete()) {
          parser_.reset();
          if (request_.method == "HEAD") parser_.expect_no_body();
          continue;
        }
      }
      switch (co_await connection_->wait_more(until - now())) {
        case Connection::Wait::kData:
          break;
        case Connection::Wait::kEnd:
        case Connection::Wait::kFailed:
          co_return cancelled_ ? cancelled_error() : lost_error();
        case Connection::Wait::kTimeout:
          co_return make_error(504, "head_timeout", "the upstream did not answer in time");
      }
    }
    ClientHead head;
    head.status = parser_.status();
    head.headers = parser_.headers();
    co_return head;
  }

  // Moves buffered bytes through the parser; true when some were used.
  bool pull() {
    const std::string_view bytes = connection_->buffered().substr(0, kReadPiece);
    if (bytes.empty() || parser_.complete() || parser_.error()) return false;
    const size_t used = parser_.feed(bytes);
    connection_->consume(used);
    return used > 0 && !parser_.error();
  }

  std::string take_piece() { return std::exchange(parser_.body(), std::string()); }

  void release() {
    finished_ = true;
    if (parser_.keep_alive()) {
      pool_->give(origin_, std::move(connection_));
    } else {
      connection_->close();
    }
    connection_ = nullptr;
  }

  void drop() {
    if (connection_) connection_->close();
    connection_ = nullptr;
  }

  std::shared_ptr<Pool> pool_;
  ClientRequest request_;
  ClientTimeouts timeouts_;
  std::string origin_;
  MessageParser parser_;
  Event connected_;
  std::function<void()> cancel_connect_;
  std::shared_ptr<Connection> connection_;
  bool cancelled_ = false;
  bool finished_ = false;
};

}  // namespace

HttpClient::HttpClient(Reactor& reactor, Duration pool_idle, size_t pool_per_origin)
    : impl_(std::make_shared<Impl>(reactor, pool_idle, pool_per_origin)) {}

HttpClient::~HttpClient() { impl_->close(); }

std::unique_ptr<ClientCall> HttpClient::call(ClientRequest request, ClientTimeouts timeouts) {
  return std::make_unique<Call<Impl>>(impl_, std::move(request), timeouts);
}

void HttpClient::drop_idle(const std::string& host, uint16_t port) {
  for (const bool tls : {false, true}) impl_->drop(pool_name(host, port, tls));
}

void HttpClient::warm(const Url& url, size_t count, Duration limit) {
  impl_->warm(url, count, limit);
}

size_t HttpClient::idle_connections() const { return impl_->size(); }

asio::awaitable<Result<WholeResponse>> fetch(HttpClient& client, ClientRequest request,
                                             ClientTimeouts timeouts, size_t limit) {
  const auto call = client.call(std::move(request), timeouts);
  Result<ClientHead> head = co_await call->head();
  if (!head) co_return tl::unexpected(std::move(head).error());
  Result<std::string> body = co_await call->read_all(limit);
  if (!body) co_return tl::unexpected(std::move(body).error());
  co_return WholeResponse{head->status, std::move(head->headers), std::move(*body)};
}

}  // namespace tandem::net
