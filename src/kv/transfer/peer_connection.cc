#include "kv/transfer/peer_connection.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "kv/transfer/file_passing.h"
#include "net/event.h"
#include "numerics/hmac.h"
#include "observe/log.h"
#include "protocol/representation.h"

namespace tandem::kv {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
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

// Of frames in the handshake: who sends them has proved nothing yet.
constexpr size_t kMaxHelloPayload = size_t{256} << 10;

awaitable<Result<HandoffFrame>> read_frame(ControlStream& stream,
                                           size_t most = protocol::kMaxFramePayload) {
  char head[protocol::kFrameHeaderBytes];
  if (!co_await stream.read(head, sizeof head)) co_return lost("The connection ended.");
  auto header = protocol::decode_frame_header(std::string_view(head, sizeof head));
  if (!header) co_return tl::unexpected(header.error());
  if (header->payload_bytes > most)
    co_return make_error(502, "handoff_protocol", "A handoff frame is over the size bound.");
  std::string payload(header->payload_bytes, '\0');
  if (!co_await stream.read(payload.data(), payload.size()))
    co_return lost("The connection ended inside a frame.");
  co_return protocol::decode_frame_payload(*header, payload);
}

awaitable<Status> write_frame(ControlStream& stream, const HandoffFrame& frame) {
  const std::string bytes = protocol::encode_frame(frame);
  if (!co_await stream.write(bytes)) co_return lost("The connection ended.");
  co_return Status{};
}

template <typename Frame>
awaitable<Result<Frame>> expect_frame(ControlStream& stream) {
  auto frame = co_await read_frame(stream, kMaxHelloPayload);
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
  Connection(net::Reactor& reactor, std::shared_ptr<ControlStream> stream, PeerOptions options)
      : reactor_(reactor),
        stream_(std::move(stream)),
        timer_(reactor.context()),
        options_(std::move(options)) {}
  ~Connection() override { expel(); }

  void start(OnFrame on_frame, OnClose on_close) override {
    on_frame_ = std::move(on_frame);
    on_close_ = std::move(on_close);
    if (closed_) {  // before it began: its end is told all the same
      reactor_.post([self = shared_from_this()] { std::exchange(self->on_close_, {})(); });
      return;
    }
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
    stream_->close();
    timer_.cancel();
    queue_.clear();
    expel();
    if (on_close_)
      reactor_.post([self = shared_from_this()] { std::exchange(self->on_close_, {})(); });
  }

  const HelloFrame& peer() const override { return peer_; }
  const Transport& transport() const override { return *transport_; }
  const std::shared_ptr<Remote>& remote() const override { return remote_; }
  device::ArenaShape arena() const override {
    return {peer_.arena_bytes, peer_.pages_offset, peer_.page_stride, peer_.page_count};
  }

  awaitable<Status> hello_as_dialer(std::string host);
  awaitable<Status> hello_as_listener(device::ArenaShape arena);

 private:
  static awaitable<void> read_loop(std::shared_ptr<Connection> self) {
    while (!self->closed_) {
      auto frame = co_await read_frame(*self->stream_);
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
      const bool written = co_await self->stream_->write(bytes);
      self->queued_bytes_ -= bytes.size();
      if (!written) self->close();
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

  // Both ends derive it from the handshake.
  PeerKey data_key(const std::string& listener, const std::string& dialer) const {
    return {proof_of(options_.secret, "data-id", listener, dialer).substr(0, 16),
            proof_of(options_.secret, "data-key", listener, dialer)};
  }
  void expel() {
    if (admitted_) transport_->expel(*std::exchange(admitted_, std::nullopt));
  }
  awaitable<Status> connect_transport(std::string host, PeerKey key, Descriptor descriptor);

  net::Reactor& reactor_;
  std::shared_ptr<ControlStream> stream_;
  asio::steady_timer timer_;
  PeerOptions options_;
  HelloFrame peer_;
  Transport* transport_ = nullptr;
  std::optional<std::string> admitted_;  // listener: the peer's key id
  std::shared_ptr<Remote> remote_;
  OnFrame on_frame_;
  OnClose on_close_;
  std::deque<std::string> queue_;
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool closed_ = false;
  TimePoint heard_{};
};

// Drawn once: two workers that see the same are in one process.
const std::string& this_process() {
  static const std::string kDrawn = numerics::random_bytes(16);
  return kDrawn;
}

std::string names_of(const std::vector<OfferedTransport>& transports) {
  std::string names;
  for (const auto& offered : transports)
    names += (names.empty() ? "" : ",") + std::string(offered.transport->name());
  return names;
}

protocol::Representation representation_of(const HelloFrame& hello) {
  return {.kv_dtype = hello.kv_dtype,
          .layout_id = hello.layout_id,
          .numeric_path = hello.representation,
          .kv_scales = hello.kv_scales,
          .weights = hello.weights};
}

awaitable<Status> Connection::hello_as_dialer(std::string host) {
  HelloFrame hello = options_.hello;
  hello.nonce = numerics::random_bytes(16);
  hello.transports = names_of(options_.transports);
  hello.process = this_process();
  if (auto sent = co_await write_frame(*stream_, hello); !sent) co_return sent;
  auto theirs = co_await expect_frame<HelloFrame>(*stream_);
  if (!theirs) co_return tl::unexpected(theirs.error());
  peer_ = std::move(*theirs);
  if (auto fits = check_compatible(peer_, options_.hello); !fits) co_return fits;
  if (!numerics::equal_constant_time(
          peer_.proof, proof_of(options_.secret, "listener", hello.nonce, peer_.nonce))) {
    co_return make_error(502, "handoff_refused",
                         "The peer does not know the shared secret (TANDEM_SECRET).");
  }
  const auto chosen = std::ranges::find_if(options_.transports, [&](const auto& offered) {
    return offered.transport->name() == peer_.transports;
  });
  if (chosen == options_.transports.end() || !device::is_sound(arena())) {
    co_return make_error(502, "handoff_protocol", "The peer's arena or transport makes no sense.");
  }
  transport_ = chosen->transport;
  peer_.converted = peer_.converted && hello.converted;
  const protocol::ProofFrame proof{proof_of(options_.secret, "dialer", peer_.nonce, hello.nonce),
                                   {}};
  if (auto sent = co_await write_frame(*stream_, proof); !sent) co_return sent;
  auto welcome = co_await expect_frame<protocol::ProofFrame>(*stream_);
  if (!welcome) co_return tl::unexpected(welcome.error());
  if (welcome->descriptor.size() > kMaxDescriptorBytes)
    co_return make_error(502, "handoff_protocol", "The peer's descriptor is too long.");
  co_return co_await connect_transport(std::move(host), data_key(peer_.nonce, hello.nonce),
                                       Descriptor{std::move(welcome->descriptor)});
}

awaitable<Status> Connection::connect_transport(std::string host, PeerKey key,
                                                Descriptor descriptor) {
  if (transport_->passes_file()) {
    if (!co_await stream_->wait_readable()) co_return lost("The connection ended.");
    auto file = receive_file(stream_->unix_socket());
    if (!file) co_return tl::unexpected(file.error());
    descriptor.file = *file;
  }
  struct Waiting {
    explicit Waiting(net::Reactor& reactor) : ended(reactor) {}
    std::optional<Result<std::shared_ptr<Remote>>> result;
    net::Event ended;
  };
  auto waiting = std::make_shared<Waiting>(reactor_);
  net::Reactor* reactor = &reactor_;
  transport_->connect(std::move(descriptor), key, host, options_.connect,
                      [waiting, reactor](Result<std::shared_ptr<Remote>> result) {
                        reactor->post([waiting, result = std::move(result)] {
                          waiting->result = result;
                          waiting->ended.notify();
                        });
                      });
  if (!co_await waiting->ended.wait_for(2 * options_.connect))
    co_return make_error(504, "connect_timeout", "The peer's memory could not be reached in time.");
  if (!*waiting->result) co_return tl::unexpected(waiting->result->error());
  if (closed_)  // the hello's time had passed, or the peer went away
    co_return make_error(504, "connect_timeout", "The peer's memory could not be reached in time.");
  remote_ = std::move(**waiting->result);
  co_return Status{};
}

awaitable<Status> Connection::hello_as_listener(device::ArenaShape arena) {
  auto theirs = co_await expect_frame<HelloFrame>(*stream_);
  if (!theirs) {
    // To one of another version this frame says which is spoken here.
    if (theirs.error().code == "handoff_protocol")
      (void)co_await write_frame(
          *stream_, protocol::AbortFrame{{}, 502, theirs.error().code, theirs.error().message});
    co_return tl::unexpected(theirs.error());
  }
  peer_ = std::move(*theirs);
  auto fits = check_compatible(options_.hello, peer_);
  const OfferedTransport* chosen =
      choose_transport(options_.transports, peer_.transports, peer_.process == this_process(),
                       stream_->unix_socket() >= 0);
  if (fits && chosen == nullptr) {
    fits = make_error(502, "handoff_refused",
                      "The two workers have no transport for KV in common (" +
                          names_of(options_.transports) + " against " + peer_.transports + ").");
  }
  if (!fits) {
    (void)co_await write_frame(
        *stream_, protocol::AbortFrame{{}, 502, fits.error().code, fits.error().message});
    co_return fits;
  }
  transport_ = chosen->transport;
  HelloFrame hello = options_.hello;
  hello.nonce = numerics::random_bytes(16);
  hello.proof = proof_of(options_.secret, "listener", peer_.nonce, hello.nonce);
  hello.arena_bytes = arena.segment_bytes;
  hello.pages_offset = arena.pages_offset;
  hello.page_stride = arena.page_stride;
  hello.page_count = arena.page_count;
  hello.transports = transport_->name();
  hello.converted =
      peer_.converted && transport_->serves_views() &&
      protocol::sender_can_convert(representation_of(hello), representation_of(peer_));
  peer_.converted = hello.converted;
  if (auto sent = co_await write_frame(*stream_, hello); !sent) co_return sent;
  auto proof = co_await expect_frame<protocol::ProofFrame>(*stream_);
  if (!proof) co_return tl::unexpected(proof.error());
  if (!numerics::equal_constant_time(
          proof->proof, proof_of(options_.secret, "dialer", hello.nonce, peer_.nonce))) {
    co_return make_error(502, "handoff_refused",
                         "A peer does not know the shared secret (TANDEM_SECRET).");
  }
  if (closed_) co_return lost("The connection ended.");
  const PeerKey key = data_key(hello.nonce, peer_.nonce);
  transport_->admit(key);
  admitted_ = key.id;
  // Not before its proof: over some transports whoever has the descriptor can read.
  const protocol::ProofFrame welcome{{}, chosen->exposed->bytes};
  if (auto sent = co_await write_frame(*stream_, welcome); !sent) co_return sent;
  if (transport_->passes_file()) co_return send_file(stream_->unix_socket(), chosen->exposed->file);
  co_return Status{};
}

// Closes `connection` when `limit` passes before `done` is set.
awaitable<void> watch_hello(net::Reactor& reactor, std::shared_ptr<Connection> connection,
                            std::shared_ptr<bool> done, Duration limit) {
  asio::steady_timer timer(reactor.context(), limit);
  (void)co_await timer.async_wait(kTuple);
  if (!*done) connection->close();
}

class Listener final : public PeerListener {
 public:
  Listener(net::Reactor& reactor, PeerOptions options, const device::ArenaShape& arena,
           OnPeer on_peer)
      : state_(std::make_shared<State>(
            State{reactor, std::move(options), arena, std::move(on_peer)})) {}
  ~Listener() override { state_->open = false; }

  Status open(const PeerAddress& address) {
    auto acceptor = ControlAcceptor::listen(
        state_->reactor, address, state_->options.tls, state_->options.connect,
        [state = state_](std::shared_ptr<ControlStream> stream) {
          auto connection =
              std::make_shared<Connection>(state->reactor, std::move(stream), state->options);
          state->reactor.spawn(welcome(state, std::move(connection)));
        });
    if (!acceptor) return tl::unexpected(acceptor.error());
    acceptor_ = std::move(*acceptor);
    return {};
  }
  uint16_t port() const override { return acceptor_->port(); }

 private:
  struct State {
    net::Reactor& reactor;
    PeerOptions options;
    device::ArenaShape arena;
    OnPeer on_peer;
    bool open = true;
  };

  static awaitable<void> welcome(std::shared_ptr<State> state,
                                 std::shared_ptr<Connection> connection) {
    auto done = std::make_shared<bool>(false);
    state->reactor.spawn(watch_hello(state->reactor, connection, done, state->options.connect));
    const auto ready = co_await connection->hello_as_listener(state->arena);
    *done = true;
    if (!ready || !state->open) {
      if (!ready) observe::log_warning("a handoff peer was refused: {}", ready.error().message);
      connection->close();
      co_return;
    }
    state->on_peer(std::move(connection));
  }

  std::shared_ptr<State> state_;
  std::unique_ptr<ControlAcceptor> acceptor_;
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
  for (const HelloFrame* hello : {&sender, &receiver}) {
    const uint64_t ranks = uint64_t{hello->tensor_ranks} * hello->data_ranks * hello->stages.size();
    if (ranks != 1 || hello->rank != 0)
      return refuse("one of them keeps its KV on " + std::to_string(ranks) +
                    " ranks, and this version takes it from one and to one");
  }
  const auto verdict = protocol::decide_reading(representation_of(sender),
                                                representation_of(receiver), receiver.accepts);
  if (verdict.reading == protocol::Reading::kRefused) return refuse(verdict.reason);
  return {};
}

const OfferedTransport* choose_transport(const std::vector<OfferedTransport>& mine,
                                         const std::string& theirs, bool same_process,
                                         bool unix_socket) {
  const std::string listed = "," + theirs + ",";
  for (const OfferedTransport& offered : mine) {
    const Transport& transport = *offered.transport;
    if (!offered.exposed) continue;
    if (listed.find("," + std::string(transport.name()) + ",") == std::string::npos) continue;
    if (transport.within_process() && !same_process) continue;
    if (transport.passes_file() && !unix_socket) continue;
    return &offered;
  }
  return nullptr;
}

Result<std::unique_ptr<PeerListener>> PeerListener::listen(net::Reactor& reactor,
                                                           const PeerAddress& address,
                                                           PeerOptions options,
                                                           const device::ArenaShape& arena,
                                                           OnPeer on_peer) {
  auto listener =
      std::make_unique<Listener>(reactor, std::move(options), arena, std::move(on_peer));
  TANDEM_CHECK(listener->open(address));
  return listener;
}

awaitable<Result<std::shared_ptr<PeerConnection>>> dial_peer(net::Reactor& reactor,
                                                             std::string address,
                                                             PeerOptions options) {
  const auto parsed = parse_peer_address(address);
  if (!parsed) co_return tl::unexpected(parsed.error());
  const Duration limit = options.connect;
  auto stream = co_await dial_stream(reactor, *parsed, options.tls, limit, options.resolver);
  if (!stream) co_return tl::unexpected(stream.error());
  auto connection = std::make_shared<Connection>(reactor, std::move(*stream), std::move(options));
  auto done = std::make_shared<bool>(false);
  reactor.spawn(watch_hello(reactor, connection, done, limit));
  const bool local = parsed->kind == PeerAddress::Kind::kUnix;
  auto ready = co_await connection->hello_as_dialer(local ? "127.0.0.1" : parsed->host);
  *done = true;
  if (!ready) {
    connection->close();
    co_return tl::unexpected(ready.error());
  }
  co_return std::shared_ptr<PeerConnection>(std::move(connection));
}

}  // namespace tandem::kv
