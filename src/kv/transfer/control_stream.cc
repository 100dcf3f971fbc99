#include "kv/transfer/control_stream.h"

#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "observe/log.h"

namespace tandem::kv {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using Socket = asio::generic::stream_protocol::socket;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
TimePoint now() { return std::chrono::steady_clock::now(); }
constexpr size_t kLongestPath = sizeof(sockaddr_un::sun_path) - 1;

tl::unexpected<Error> unreachable(const PeerAddress& address, const std::string& why) {
  return make_error(502, "connect_failed",
                    "The prefill worker at " + address.text() + " cannot be reached: " + why + ".");
}

class PlainStream final : public ControlStream {
 public:
  PlainStream(Socket socket, bool local) : socket_(std::move(socket)), local_(local) {}
  awaitable<bool> read(void* into, size_t bytes) override {
    auto [error, count] = co_await asio::async_read(socket_, asio::buffer(into, bytes), kTuple);
    co_return !error;
  }
  awaitable<bool> write(const std::string& bytes) override {
    auto [error, count] = co_await asio::async_write(socket_, asio::buffer(bytes), kTuple);
    co_return !error;
  }
  awaitable<bool> wait_readable() override {
    auto [error] = co_await socket_.async_wait(Socket::wait_read, kTuple);
    co_return !error;
  }
  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  int unix_socket() const override {
    return local_ ? const_cast<Socket&>(socket_).native_handle() : -1;
  }

 private:
  Socket socket_;
  bool local_;
};

class TlsStream final : public ControlStream {
 public:
  TlsStream(Socket socket, const TlsContext& tls)
      : context_(up(tls)), stream_(std::move(socket), context_) {}
  awaitable<bool> handshake(bool as_server, const std::string& host) {
    if (!as_server) require_host(stream_.native_handle(), host);
    const auto side = as_server ? asio::ssl::stream_base::server : asio::ssl::stream_base::client;
    auto [error] = co_await stream_.async_handshake(side, kTuple);
    if (error) observe::log_warning("TLS with a handoff peer: {}", error.message());
    co_return !error;
  }
  awaitable<bool> read(void* into, size_t bytes) override {
    auto [error, count] = co_await asio::async_read(stream_, asio::buffer(into, bytes), kTuple);
    co_return !error;
  }
  awaitable<bool> write(const std::string& bytes) override {
    auto [error, count] = co_await asio::async_write(stream_, asio::buffer(bytes), kTuple);
    co_return !error;
  }
  awaitable<bool> wait_readable() override { co_return false; }
  void close() override {
    boost::system::error_code ignored;
    stream_.lowest_layer().close(ignored);
  }
  int unix_socket() const override { return -1; }

 private:
  static SSL_CTX* up(const TlsContext& tls) {
    SSL_CTX_up_ref(tls.get());
    return tls.get();
  }
  asio::ssl::context context_;  // one more reference to the worker's
  asio::ssl::stream<Socket> stream_;
};

void tune(Socket& socket, PeerAddress::Kind kind) {
  boost::system::error_code ignored;
  if (kind != PeerAddress::Kind::kUnix) socket.set_option(asio::ip::tcp::no_delay(true), ignored);
}

// Closes whatever `close` closes when `limit` passes before `done` is set.
awaitable<void> watch(std::shared_ptr<bool> done, std::shared_ptr<Socket> socket, Duration limit) {
  asio::steady_timer timer(socket->get_executor(), limit);
  (void)co_await timer.async_wait(kTuple);
  boost::system::error_code ignored;
  if (!*done) socket->close(ignored);
}

awaitable<void> watch_stream(std::shared_ptr<bool> done, std::shared_ptr<ControlStream> stream,
                             net::Reactor& reactor, Duration limit) {
  asio::steady_timer timer(reactor.context(), limit);
  (void)co_await timer.async_wait(kTuple);
  if (!*done) stream->close();
}

awaitable<Result<std::shared_ptr<ControlStream>>> secure(net::Reactor& reactor, Socket socket,
                                                         const TlsContext& tls, bool as_server,
                                                         const PeerAddress& address,
                                                         Duration limit) {
  auto stream = std::make_shared<TlsStream>(std::move(socket), tls);
  auto done = std::make_shared<bool>(false);
  reactor.spawn(watch_stream(done, stream, reactor, limit));
  const bool secured = co_await stream->handshake(as_server, address.host);
  *done = true;
  if (!secured) {
    stream->close();
    co_return unreachable(address, "TLS failed (its certificate, or ours, is not accepted)");
  }
  co_return std::shared_ptr<ControlStream>(std::move(stream));
}

class AcceptorImpl final : public ControlAcceptor {
 public:
  AcceptorImpl(net::Reactor& reactor, PeerAddress address, const TlsContext* tls, Duration limit,
               OnStream on_stream)
      : state_(
            std::make_shared<State>(State{reactor, Acceptor(reactor.context()), std::move(address),
                                          tls, limit, std::move(on_stream)})) {}
  ~AcceptorImpl() override {
    boost::system::error_code ignored;
    state_->acceptor.close(ignored);
    if (bound_ && state_->address.kind == PeerAddress::Kind::kUnix)
      unlink(state_->address.path.c_str());
  }
  uint16_t port() const override { return port_; }

  Status open() {
    const PeerAddress& address = state_->address;
    try {
      if (address.kind == PeerAddress::Kind::kUnix) {
        bind_unix(address.path);
      } else {
        bind_tcp(address);
      }
      state_->acceptor.listen();
    } catch (const boost::system::system_error& error) {  // also for a path that is too long
      const bool local = address.kind == PeerAddress::Kind::kUnix;
      return make_error(
          500, "listen_failed",
          (local ? "The handoff socket " + address.path : "The handoff address " + address.text()) +
              " cannot be opened: " + error.code().message() + ".");
    }
    state_->reactor.spawn(accept_loop(state_));
    return {};
  }

 private:
  struct State {
    net::Reactor& reactor;
    Acceptor acceptor;
    PeerAddress address;
    const TlsContext* tls;
    Duration limit;
    OnStream on_stream;
  };

  void bind_unix(const std::string& path) {
    // A socket is what an earlier worker left; anything else is somebody's file.
    struct stat there{};
    if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path.c_str());
    const asio::local::stream_protocol::endpoint endpoint(path);
    state_->acceptor.open(endpoint.protocol());
    state_->acceptor.bind(endpoint);
    bound_ = true;
    chmod(path.c_str(), 0600);
  }
  void bind_tcp(const PeerAddress& address) {
    asio::ip::tcp::resolver resolver(state_->reactor.context());
    const asio::ip::tcp::endpoint endpoint =
        *resolver
             .resolve(address.host, std::to_string(address.port), asio::ip::resolver_base::passive)
             .begin();
    state_->acceptor.open(endpoint.protocol());
    state_->acceptor.set_option(Acceptor::reuse_address(true));
    state_->acceptor.bind(endpoint);
    asio::ip::tcp::endpoint bound;
    const auto generic = state_->acceptor.local_endpoint();
    std::memcpy(bound.data(), generic.data(), std::min(generic.size(), bound.capacity()));
    port_ = bound.port();
  }

  static awaitable<void> accept_loop(std::shared_ptr<State> state) {
    while (state->acceptor.is_open()) {
      Socket socket(state->reactor.context());
      auto [error] = co_await state->acceptor.async_accept(socket, kTuple);
      if (error) {
        if (!state->acceptor.is_open()) co_return;
        co_await state->reactor.sleep(std::chrono::milliseconds(50));
        continue;
      }
      tune(socket, state->address.kind);
      if (state->address.kind == PeerAddress::Kind::kTls) {
        state->reactor.spawn(welcome(state, std::move(socket)));
      } else {
        state->on_stream(std::make_shared<PlainStream>(
            std::move(socket), state->address.kind == PeerAddress::Kind::kUnix));
      }
    }
  }

  static awaitable<void> welcome(std::shared_ptr<State> state, Socket socket) {
    auto stream = co_await secure(state->reactor, std::move(socket), *state->tls, true,
                                  state->address, state->limit);
    if (stream && state->acceptor.is_open()) state->on_stream(std::move(*stream));
  }

  std::shared_ptr<State> state_;
  bool bound_ = false;
  uint16_t port_ = 0;
};

// The endpoints that an address stands for.
awaitable<Result<std::vector<asio::generic::stream_protocol::endpoint>>> resolve(
    net::Reactor& reactor, const PeerAddress& address, HostResolver resolver, TimePoint until) {
  std::vector<asio::generic::stream_protocol::endpoint> out;
  if (address.kind == PeerAddress::Kind::kUnix) {
    out.emplace_back(asio::local::stream_protocol::endpoint(address.path));
    co_return out;
  }
  // The look-up may outlive the reactor, so it leaves its answer where this finds it.
  struct Answer {
    std::mutex lock;
    std::optional<HostAddresses> found;
  };
  const auto answer = std::make_shared<Answer>();
  look_up_host(std::move(resolver), address.host, address.port, [answer](HostAddresses found) {
    const std::lock_guard guard(answer->lock);
    answer->found = std::move(found);
  });
  const auto arrived = [&answer] {
    const std::lock_guard guard(answer->lock);
    return answer->found;
  };
  auto found = arrived();
  for (; !found; found = arrived()) {
    if (now() >= until)
      co_return make_error(504, "connect_timeout",
                           "The host of the prefill worker at " + address.text() +
                               " could not be looked up in time.");
    co_await reactor.sleep(std::chrono::milliseconds(10));
  }
  if (!*found) co_return tl::unexpected(found->error());
  for (const HostAddress& entry : **found) out.emplace_back(&entry.name, entry.bytes, IPPROTO_TCP);
  co_return out;
}

}  // namespace

std::string PeerAddress::text() const {
  if (kind == Kind::kUnix) return "unix:" + path;
  const bool six = host.find(':') != std::string::npos;
  return (kind == Kind::kTcp ? "tcp:" : "tls:") + (six ? "[" + host + "]" : host) + ":" +
         std::to_string(port);
}

Result<PeerAddress> parse_peer_address(const std::string& text) {
  const auto bad = [] {
    return make_error(502, "handoff_protocol",
                      "The prefill address is not \"unix:/path\", \"tcp:host:port\" or "
                      "\"tls:host:port\".");
  };
  PeerAddress out;
  const std::string_view rest = std::string_view(text).substr(std::min<size_t>(text.size(), 4));
  if (text.starts_with("unix:")) {
    out.path = text.substr(5);
    if (out.path.empty() || out.path.size() > kLongestPath) return bad();
    return out;
  }
  if (!text.starts_with("tcp:") && !text.starts_with("tls:")) return bad();
  out.kind = text.starts_with("tcp:") ? PeerAddress::Kind::kTcp : PeerAddress::Kind::kTls;
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || rest.size() > 300) return bad();
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string_view digits = rest.substr(colon + 1);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
  if (host.empty() || digits.empty() || parsed.ec != std::errc{} ||
      parsed.ptr != digits.data() + digits.size()) {
    return bad();
  }
  out.host = host;
  return out;
}

awaitable<Result<std::shared_ptr<ControlStream>>> dial_stream(net::Reactor& reactor,
                                                              const PeerAddress& address,
                                                              const TlsContext* tls, Duration limit,
                                                              HostResolver resolver) {
  if (address.kind == PeerAddress::Kind::kTls && tls == nullptr)
    co_return unreachable(address, "this worker has no certificate (--handoff-tls-cert)");
  const TimePoint until = now() + limit;
  auto endpoints = co_await resolve(reactor, address, std::move(resolver), until);
  if (!endpoints) co_return tl::unexpected(endpoints.error());
  std::string why = "it has no address";
  for (const auto& endpoint : *endpoints) {
    auto socket = std::make_shared<Socket>(reactor.context());
    auto done = std::make_shared<bool>(false);
    reactor.spawn(watch(done, socket, until - now()));
    auto [error] = co_await socket->async_connect(endpoint, kTuple);
    *done = true;
    if (error) {
      why = error.message();
      continue;
    }
    tune(*socket, address.kind);
    if (address.kind == PeerAddress::Kind::kTls)
      co_return co_await secure(reactor, std::move(*socket), *tls, false, address, until - now());
    co_return std::make_shared<PlainStream>(std::move(*socket),
                                            address.kind == PeerAddress::Kind::kUnix);
  }
  co_return unreachable(address, why);
}

Result<std::unique_ptr<ControlAcceptor>> ControlAcceptor::listen(net::Reactor& reactor,
                                                                 const PeerAddress& address,
                                                                 const TlsContext* tls,
                                                                 Duration limit,
                                                                 OnStream on_stream) {
  if (address.kind == PeerAddress::Kind::kTls && tls == nullptr) {
    return make_error(500, "listen_failed",
                      "The handoff address " + address.text() +
                          " needs a certificate (--handoff-tls-cert and its companions).");
  }
  auto acceptor =
      std::make_unique<AcceptorImpl>(reactor, address, tls, limit, std::move(on_stream));
  TANDEM_CHECK(acceptor->open());
  return acceptor;
}

}  // namespace tandem::kv
