#include "kv/transfer/peer_connection.h"

#include <cstring>
#include <deque>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "kv/transfer/file_passing.h"
#include "numerics/hmac.h"
#include "observe/log.h"
#include "protocol/representation.h"

namespace tandem::kv {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using Socket = asio::local::stream_protocol::socket;
using protocol::HandoffFrame;
using protocol::HelloFrame;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

tl::unexpected<Error> lost(std::string message) {
  return make_error(502, "connect_failed", std::move(message));
}

std::string proof_of(const std::string& secret, std::string_view side, const std::string& first,
                     const std::string& second) {
  return numerics::hmac_sha256(secret, std::string(side) + first + second);
}

awaitable<Result<HandoffFrame>> read_frame(Socket& socket) {
  char head[protocol::kFrameHeaderBytes];
  auto [head_error, head_bytes] = co_await asio::async_read(socket, asio::buffer(head), kTuple);
  if (head_error) co_return lost("The connection ended.");
  auto header = protocol::decode_frame_header(std::string_view(head, head_bytes));
  if (!header) co_return tl::unexpected(header.error());
  std::string payload(header->payload_bytes, '\0');
  auto [error, bytes] = co_await asio::async_read(socket, asio::buffer(payload), kTuple);
  if (error) co_return lost("The connection ended inside a frame.");
  co_return protocol::decode_frame_payload(*header, payload);
}

awaitable<Status> write_frame(Socket& socket, const HandoffFrame& frame) {
  const std::string bytes = protocol::encode_frame(frame);
  auto [error, count] = co_await asio::async_write(socket, asio::buffer(bytes), kTuple);
  if (error) co_return lost("The connection ended.");
  co_return Status{};
}

template <typename Frame>
awaitable<Result<Frame>> expect_frame(Socket& socket) {
  auto frame = co_await read_frame(socket);
  if (!frame) co_return tl::unexpected(frame.error());
  if (auto* abort = std::get_if<protocol::AbortFrame>(&*frame)) {
    co_return make_error(502, "handoff_refused",
                         "The peer refused the connection: " + abort->message);
  }
  if (auto* wanted = std::get_if<Frame>(&*frame)) co_return std::move(*wanted);
  co_return make_error(502, "handoff_protocol",
                       "The peer sent another frame than the handshake wants.");
}

class Connection final : public PeerConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(net::Reactor& reactor, Socket socket, PeerOptions options)
      : reactor_(reactor),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        options_(std::move(options)) {}

  void start(OnFrame on_frame, OnClose on_close) override {
    on_frame_ = std::move(on_frame);
    on_close_ = std::move(on_close);
    heard_ = std::chrono::steady_clock::now();
    reactor_.spawn(read_loop(shared_from_this()));
    reactor_.spawn(heartbeat_loop(shared_from_this()));
  }

  void send(const HandoffFrame& frame) override {
    if (closed_) return;
    std::string bytes = protocol::encode_frame(frame);
    queued_bytes_ += bytes.size();
    queue_.push_back(std::move(bytes));
    if (queued_bytes_ > options_.max_queued_bytes) {
      observe::log_warning("a handoff peer does not read: dropped");
      close();
      return;
    }
    if (!writing_) {
      writing_ = true;
      reactor_.spawn(write_loop(shared_from_this()));
    }
  }

  void close() override {
    if (closed_) return;
    closed_ = true;
    boost::system::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    queue_.clear();
    if (on_close_)
      reactor_.post([self = shared_from_this()] { std::exchange(self->on_close_, {})(); });
  }

  const HelloFrame& peer() const override { return peer_; }
  const device::RemoteArena* arena() const override { return arena_.get(); }

  awaitable<Status> hello_as_dialer();
  awaitable<Status> hello_as_listener(const device::SharedArena& arena);
  Socket& socket() { return socket_; }
  const PeerOptions& options() const { return options_; }

 private:
  static awaitable<void> read_loop(std::shared_ptr<Connection> self) {
    while (!self->closed_) {
      auto frame = co_await read_frame(self->socket_);
      if (self->closed_) break;
      if (!frame) {
        if (frame.error().code == "handoff_protocol")
          observe::log_warning("handoff peer: {}", frame.error().message);
        break;
      }
      self->heard_ = std::chrono::steady_clock::now();
      if (const auto* ping = std::get_if<protocol::PingFrame>(&*frame)) {
        if (!ping->reply) self->send(protocol::PingFrame{ping->sequence, true});
        continue;
      }
      self->on_frame_(std::move(*frame));
    }
    self->close();
    self->on_frame_ = {};
  }

  static awaitable<void> write_loop(std::shared_ptr<Connection> self) {
    while (!self->queue_.empty() && !self->closed_) {
      const std::string bytes = std::move(self->queue_.front());
      self->queue_.pop_front();
      auto [error, count] = co_await asio::async_write(self->socket_, asio::buffer(bytes), kTuple);
      self->queued_bytes_ -= bytes.size();
      if (error) self->close();
    }
    self->writing_ = false;
  }

  static awaitable<void> heartbeat_loop(std::shared_ptr<Connection> self) {
    for (uint64_t sequence = 1; !self->closed_; ++sequence) {
      const auto before = std::chrono::steady_clock::now();
      self->timer_.expires_after(self->options_.heartbeat);
      auto [error] = co_await self->timer_.async_wait(kTuple);
      if (error || self->closed_) co_return;
      const auto now = std::chrono::steady_clock::now();
      if (now - before > self->options_.silence) {
        self->heard_ =
            now;  // this process was stopped, not the peer: its frames are still to be read
      } else if (now - self->heard_ > self->options_.silence) {
        observe::log_warning("a handoff peer fell silent: dropped");
        self->close();
        co_return;
      }
      self->send(protocol::PingFrame{sequence, false});
    }
  }

  net::Reactor& reactor_;
  Socket socket_;
  asio::steady_timer timer_;
  PeerOptions options_;
  HelloFrame peer_;
  std::unique_ptr<device::RemoteArena> arena_;
  OnFrame on_frame_;
  OnClose on_close_;
  std::deque<std::string> queue_;
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool closed_ = false;
  TimePoint heard_{};
};

awaitable<Status> Connection::hello_as_dialer() {
  HelloFrame hello = options_.hello;
  hello.nonce = numerics::random_bytes(16);
  if (auto sent = co_await write_frame(socket_, hello); !sent) co_return sent;
  auto theirs = co_await expect_frame<HelloFrame>(socket_);
  if (!theirs) co_return tl::unexpected(theirs.error());
  peer_ = std::move(*theirs);
  if (auto fits = check_compatible(peer_, options_.hello); !fits) co_return fits;
  if (!numerics::equal_constant_time(
          peer_.proof, proof_of(options_.secret, "listener", hello.nonce, peer_.nonce))) {
    co_return make_error(502, "handoff_refused",
                         "The peer does not know the shared secret (TANDEM_SECRET).");
  }
  const protocol::ProofFrame proof{proof_of(options_.secret, "dialer", peer_.nonce, hello.nonce)};
  if (auto sent = co_await write_frame(socket_, proof); !sent) co_return sent;
  auto [error] = co_await socket_.async_wait(Socket::wait_read, kTuple);
  if (error) co_return lost("The connection ended.");
  auto descriptor = receive_file(socket_.native_handle());
  if (!descriptor) co_return tl::unexpected(descriptor.error());
  auto mapped = device::RemoteArena::map(
      *descriptor, {peer_.arena_bytes, peer_.pages_offset, peer_.page_stride, peer_.page_count});
  if (!mapped) co_return tl::unexpected(mapped.error());
  arena_ = std::move(*mapped);
  co_return Status{};
}

awaitable<Status> Connection::hello_as_listener(const device::SharedArena& arena) {
  auto theirs = co_await expect_frame<HelloFrame>(socket_);
  if (!theirs) co_return tl::unexpected(theirs.error());
  peer_ = std::move(*theirs);
  if (auto fits = check_compatible(options_.hello, peer_); !fits) {
    (void)co_await write_frame(
        socket_, protocol::AbortFrame{{}, 502, fits.error().code, fits.error().message});
    co_return fits;
  }
  HelloFrame hello = options_.hello;
  hello.nonce = numerics::random_bytes(16);
  hello.proof = proof_of(options_.secret, "listener", peer_.nonce, hello.nonce);
  hello.arena_bytes = arena.shape().segment_bytes;
  hello.pages_offset = arena.shape().pages_offset;
  hello.page_stride = arena.shape().page_stride;
  hello.page_count = arena.shape().page_count;
  if (auto sent = co_await write_frame(socket_, hello); !sent) co_return sent;
  auto proof = co_await expect_frame<protocol::ProofFrame>(socket_);
  if (!proof) co_return tl::unexpected(proof.error());
  if (!numerics::equal_constant_time(
          proof->proof, proof_of(options_.secret, "dialer", hello.nonce, peer_.nonce))) {
    co_return make_error(502, "handoff_refused",
                         "A peer does not know the shared secret (TANDEM_SECRET).");
  }
  co_return send_file(socket_.native_handle(), arena.read_only_descriptor());
}

// Closes `connection` when `limit` passes before `done` is set.
awaitable<void> watch_hello(std::shared_ptr<Connection> connection, std::shared_ptr<bool> done,
                            Duration limit) {
  asio::steady_timer timer(connection->socket().get_executor(), limit);
  (void)co_await timer.async_wait(kTuple);
  if (!*done) connection->close();
}

class UnixListener final : public PeerListener {
 public:
  UnixListener(net::Reactor& reactor, std::string path, PeerOptions options,
               const device::SharedArena& arena, OnPeer on_peer)
      : path_(std::move(path)),
        state_(std::make_shared<State>(
            State{reactor, asio::local::stream_protocol::acceptor(reactor.context()),
                  std::move(options), arena, std::move(on_peer)})) {}
  ~UnixListener() override {
    boost::system::error_code ignored;
    state_->acceptor.close(ignored);
    if (bound_) unlink(path_.c_str());
  }

  Status open() {
    try {
      // A socket is what an earlier worker left; anything else is somebody's file.
      struct stat there{};
      if (lstat(path_.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path_.c_str());
      state_->acceptor.open();
      state_->acceptor.bind(asio::local::stream_protocol::endpoint(path_));
      bound_ = true;
      chmod(path_.c_str(), 0600);
      state_->acceptor.listen();
    } catch (const boost::system::system_error& error) {  // also for a path that is too long
      return make_error(
          500, "listen_failed",
          "The handoff socket " + path_ + " cannot be opened: " + error.code().message() + ".");
    }
    state_->reactor.spawn(accept_loop(state_));
    return {};
  }

 private:
  struct State {
    net::Reactor& reactor;
    asio::local::stream_protocol::acceptor acceptor;
    PeerOptions options;
    const device::SharedArena& arena;
    OnPeer on_peer;
  };

  static awaitable<void> accept_loop(std::shared_ptr<State> state) {
    while (state->acceptor.is_open()) {
      auto [error, socket] = co_await state->acceptor.async_accept(kTuple);
      if (error) {
        if (!state->acceptor.is_open()) co_return;
        co_await state->reactor.sleep(std::chrono::milliseconds(50));
        continue;
      }
      auto connection =
          std::make_shared<Connection>(state->reactor, std::move(socket), state->options);
      state->reactor.spawn(welcome(state, std::move(connection)));
    }
  }

  static awaitable<void> welcome(std::shared_ptr<State> state,
                                 std::shared_ptr<Connection> connection) {
    auto done = std::make_shared<bool>(false);
    state->reactor.spawn(watch_hello(connection, done, state->options.connect));
    const auto ready = co_await connection->hello_as_listener(state->arena);
    *done = true;
    if (!ready) {
      observe::log_warning("a handoff peer was refused: {}", ready.error().message);
      connection->close();
      co_return;
    }
    state->on_peer(std::move(connection));
  }

  std::string path_;
  bool bound_ = false;
  std::shared_ptr<State> state_;
};

}  // namespace

Status check_compatible(const HelloFrame& sender, const HelloFrame& receiver) {
  const auto refuse = [](const std::string& what) {
    return make_error(502, "handoff_refused", "The two workers cannot exchange KV: " + what + ".");
  };
  if (sender.version_min > receiver.version_max || sender.version_max < receiver.version_min) {
    return refuse("they speak handoff versions " + std::to_string(sender.version_min) + " to " +
                  std::to_string(sender.version_max) + " and " +
                  std::to_string(receiver.version_min) + " to " +
                  std::to_string(receiver.version_max));
  }
  if (sender.lineage != receiver.lineage) return refuse("they serve different models");
  const auto numbers = [](const HelloFrame& hello) {
    return std::to_string(hello.layers) + " layers, " + std::to_string(hello.kv_heads) +
           " KV heads of " + std::to_string(hello.head_dim) + ", blocks of " +
           std::to_string(hello.block_tokens);
  };
  if (numbers(sender) != numbers(receiver)) {
    return refuse("their pages differ (" + numbers(sender) + " against " + numbers(receiver) + ")");
  }
  if (sender.windows != receiver.windows || sender.layer_places != receiver.layer_places)
    return refuse("they deal the model's layers into page groups in different ways");
  const auto representation = [](const HelloFrame& hello) {
    return protocol::Representation{.kv_dtype = hello.kv_dtype,
                                    .layout_id = hello.layout_id,
                                    .numeric_path = hello.representation,
                                    .kv_scales = hello.kv_scales,
                                    .weights = hello.weights};
  };
  const auto verdict =
      protocol::decide_reading(representation(sender), representation(receiver), receiver.accepts);
  if (verdict.reading == protocol::Reading::kRefused) return refuse(verdict.reason);
  return {};
}

Result<std::unique_ptr<PeerListener>> PeerListener::listen(net::Reactor& reactor,
                                                           const std::string& path,
                                                           PeerOptions options,
                                                           const device::SharedArena& arena,
                                                           OnPeer on_peer) {
  auto listener =
      std::make_unique<UnixListener>(reactor, path, std::move(options), arena, std::move(on_peer));
  TANDEM_CHECK(listener->open());
  return listener;
}

awaitable<Result<std::shared_ptr<PeerConnection>>> dial_peer(net::Reactor& reactor,
                                                             std::string address,
                                                             PeerOptions options) {
  constexpr std::string_view kPrefix = "unix:";
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (!address.starts_with(kPrefix) || address.size() > kPrefix.size() + kLongest) {
    co_return make_error(502, "handoff_protocol", "The prefill address is not \"unix:/path\".");
  }
  auto connection =
      std::make_shared<Connection>(reactor, Socket(reactor.context()), std::move(options));
  auto done = std::make_shared<bool>(false);
  reactor.spawn(watch_hello(connection, done, connection->options().connect));
  const asio::local::stream_protocol::endpoint endpoint(address.substr(kPrefix.size()));
  auto [error] = co_await connection->socket().async_connect(endpoint, kTuple);
  if (error) {
    *done = true;
    connection->close();
    co_return lost("The prefill worker at " + address + " cannot be reached: " + error.message() +
                   ".");
  }
  auto ready = co_await connection->hello_as_dialer();
  *done = true;
  if (!ready) {
    connection->close();
    co_return tl::unexpected(ready.error());
  }
  co_return std::shared_ptr<PeerConnection>(std::move(connection));
}

}  // namespace tandem::kv
