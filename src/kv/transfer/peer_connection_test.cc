#include "kv/transfer/peer_connection.h"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kv/transfer/local_transport.h"
#include "kv/transfer/tcp_transport.h"
#include "kv/transfer/test_certificate.h"
#include "kv/transfer/transport_subject.h"
#include "protocol/representation.h"

namespace tandem::kv {
namespace {

class PeerTest : public ::testing::Test {
 protected:
  PeerTest() {
    options_.hello.lineage = "model";
    options_.hello.representation = "test";
    options_.hello.block_tokens = 16;
    options_.hello.layers = 2;
    options_.secret = "secret";
    arena_ = std::move(*device::SharedArena::create(4096, 4));
    shm_ = make_shared_memory_transport({});
    process_ = make_in_process_transport({});
    for (Transport* transport : {process_.get(), shm_.get()}) {
      options_.transports.push_back(
          {transport, *transport->expose(arena_->segment(), arena_->read_only_descriptor())});
    }
    path_ = ::testing::TempDir() + "tandem-peer-" + std::to_string(getpid()) + ".sock";
  }
  void listen() {
    auto listener = PeerListener::listen(reactor_, here(), options_, arena_->shape(),
                                         [this](auto peer) { accepted_ = std::move(peer); });
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
  }
  Result<std::shared_ptr<PeerConnection>> dial(PeerOptions options) {
    Result<std::shared_ptr<PeerConnection>> out = internal_error("");
    net::run_until_done(
        reactor_,
        [](PeerTest& test, PeerOptions with, auto& result) -> boost::asio::awaitable<void> {
          result = co_await dial_peer(test.reactor_,
                                      test.address_.empty() ? "unix:" + test.path_ : test.address_,
                                      std::move(with));
          for (int i = 0; i < 100 && result && !test.accepted_; ++i)
            co_await test.reactor_.sleep(std::chrono::milliseconds(10));
        }(*this, std::move(options), out));
    return out;
  }
  void run(Duration duration) {
    net::run_until_done(reactor_,
                        [](PeerTest& test, Duration time) -> boost::asio::awaitable<void> {
                          co_await test.reactor_.sleep(time);
                        }(*this, duration));
  }

  PeerAddress here() const {
    PeerAddress address;
    address.path = path_;
    return address;
  }

  PeerOptions options_;
  std::unique_ptr<device::SharedArena> arena_;
  std::unique_ptr<Transport> shm_, process_, tls_;
  net::Reactor reactor_;  // connections on it use the transports
  std::string path_;
  std::string address_;  // empty: the path's
  std::unique_ptr<PeerListener> listener_;
  std::shared_ptr<PeerConnection> accepted_;
};

TEST_F(PeerTest, ExchangesFramesAndReadsThePeersPages) {
  listen();
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed) << dialed.error().message;
  ASSERT_TRUE(accepted_);
  std::vector<std::string> got;
  (*dialed)->start(
      [&](protocol::HandoffFrame frame) {
        got.push_back(std::get<protocol::BusyFrame>(frame).message);
      },
      [] {});
  accepted_->start(
      [&](const protocol::HandoffFrame& frame) {
        EXPECT_TRUE(std::holds_alternative<protocol::OpenFrame>(frame));
        for (int i = 0; i < 50; ++i) accepted_->send(protocol::BusyFrame{{}, std::to_string(i)});
      },
      [] {});
  arena_->set_generation(1, 9);
  std::memset(arena_->pages() + arena_->shape().page_stride, 7, 100);
  (*dialed)->send(protocol::OpenFrame{{"id", 1, 0}});
  run(std::chrono::milliseconds(200));
  ASSERT_EQ(got.size(), 50U);
  EXPECT_EQ(got[49], "49");
  EXPECT_EQ((*dialed)->transport().name(), "process");
  const device::ArenaShape shape = (*dialed)->arena();
  std::vector<std::byte> out(108);
  EXPECT_EQ(
      read_now(*(*dialed)->remote(), {{shape.pages_offset + shape.page_stride, out.data(), 100},
                                      {8, out.data() + 100, 8}}),
      TransferStatus::kOk);
  EXPECT_EQ(out[99], std::byte{7});
  EXPECT_EQ(out[100], std::byte{9});
  (*dialed)->close();
  accepted_->close();
  run(std::chrono::milliseconds(50));
}

TEST_F(PeerTest, RefusesAnotherSecretModelOrLayout) {
  listen();
  auto other = options_;
  other.secret = "guess";
  EXPECT_EQ(dial(other).error().code, "handoff_refused");
  other = options_;
  other.hello.lineage = "another";
  auto refused = dial(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("different models"), std::string::npos);
  other = options_;
  other.hello.block_tokens = 32;
  EXPECT_FALSE(dial(other));
  other = options_;
  other.hello.windows = {0, 512};
  refused = dial(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("page groups"), std::string::npos);
  other = options_;
  other.hello.layer_places = {1, 0, 0, 0};
  EXPECT_FALSE(dial(other));
  other = options_;
  other.transports.clear();
  refused = dial(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("no transport"), std::string::npos);
  other = options_;
  other.hello.version_min = other.hello.version_max = 7;
  refused = dial(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("versions"), std::string::npos);
  EXPECT_FALSE(accepted_);
}

// The listener sends, the dialer receives: BF16 pages are read into FP8 ones, the other way only by
// the receiver's choice, and the dialer hears why not.
TEST_F(PeerTest, WhichRepresentationIsReadDependsOnTheDirection) {
  constexpr uint32_t kBF16 = 2;
  constexpr uint32_t kFp8 = 3;
  options_.hello.kv_dtype = kBF16;
  listen();
  auto other = options_;
  other.hello.kv_dtype = kFp8;
  EXPECT_TRUE(dial(other));
  accepted_.reset();
  listener_.reset();
  options_.hello.kv_dtype = kFp8;
  listen();
  other.hello.kv_dtype = kBF16;
  const auto refused = dial(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "handoff_refused");
  EXPECT_NE(refused.error().message.find("stored as fp8 and would be read as bf16"),
            std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(accepted_);
  other.hello.accepts = protocol::kAcceptCoarser;
  EXPECT_TRUE(dial(other));
  other.hello.kv_dtype = kFp8;
  other.hello.accepts = 0;
  EXPECT_TRUE(dial(other));
  other.hello.kv_scales = "0011223344556677";
  const auto scaled = dial(other);
  ASSERT_FALSE(scaled);
  EXPECT_NE(scaled.error().message.find("scales"), std::string::npos) << scaled.error().message;
}

struct NoViews final : SourceViews {
  Shape shape(uint16_t /*view*/) const override { return {}; }
  void write(uint16_t /*view*/, const std::byte* /*from*/, std::byte* /*to*/) const override {}
};

// Both ends know whether the sender converts: when the receiver asks, the transport can, and it
// saves bytes with scales that the sender has.
TEST_F(PeerTest, WhetherTheSenderConvertsIsAgreedOn) {
  constexpr uint32_t kBF16 = 2;
  constexpr uint32_t kFp8 = 3;
  constexpr uint32_t kInline = 4;
  struct Case {
    bool asked, served;
    uint32_t stored, wanted;
    const char* scales;  // of the receiver
    bool agreed;
  };
  for (const Case& c : {Case{true, true, kBF16, kFp8, "1", true},
                        {true, true, kBF16, kInline, "1", true},
                        {true, true, kBF16, kInline, "0123456789abcdef", true},
                        {false, true, kBF16, kFp8, "1", false},
                        {true, false, kBF16, kFp8, "1", false},
                        {true, true, kBF16, kFp8, "0123456789abcdef", false},
                        {true, true, kBF16, kBF16, "1", false},
                        {true, true, kFp8, kBF16, "1", false}}) {
    const auto tcp = make_tcp_transport({});
    EXPECT_EQ(c.served && tcp->serve_views(std::make_shared<NoViews>()), c.served);
    options_.transports = {{tcp.get(), *tcp->expose(arena_->segment(), -1)}};
    options_.hello.kv_dtype = c.stored;
    listen();
    auto other = options_;
    other.hello.kv_dtype = c.wanted;
    other.hello.kv_scales = c.scales;
    other.hello.converted = c.asked;
    other.hello.accepts = protocol::kAcceptCoarser;
    const auto dialed = dial(other);
    ASSERT_TRUE(dialed) << dialed.error().message;
    EXPECT_EQ((*dialed)->peer().converted, c.agreed);
    EXPECT_EQ(accepted_->peer().converted, c.agreed);
    (*dialed)->close();
    accepted_->close();
    accepted_.reset();
    listener_.reset();
    run(std::chrono::milliseconds(20));
  }
}

TEST_F(PeerTest, OverAUnixSocketTheArenasFileIsPassed) {
  options_.transports.erase(options_.transports.begin());
  listen();
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed) << dialed.error().message;
  EXPECT_EQ((*dialed)->transport().name(), "shm");
  arena_->set_generation(3, 77);
  uint64_t generation = 0;
  EXPECT_EQ(read_now(*(*dialed)->remote(),
                     {{24, reinterpret_cast<std::byte*>(&generation), sizeof generation}}),
            TransferStatus::kOk);
  EXPECT_EQ(generation, 77U);
}

TEST_F(PeerTest, FramesGoOverTcpAndSharedMemoryDoesNot) {
  auto listener =
      PeerListener::listen(reactor_, *parse_peer_address("tcp:127.0.0.1:0"), options_,
                           arena_->shape(), [this](auto peer) { accepted_ = std::move(peer); });
  ASSERT_TRUE(listener) << listener.error().message;
  address_ = "tcp:127.0.0.1:" + std::to_string((*listener)->port());
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed) << dialed.error().message;
  EXPECT_EQ((*dialed)->transport().name(), "process");
  options_.transports.erase(options_.transports.begin());
  dialed = dial(options_);
  ASSERT_FALSE(dialed);
  EXPECT_NE(dialed.error().message.find("no transport"), std::string::npos);
}

TEST_F(PeerTest, OverTlsBothEndsShowCertificates) {
  options_.tls = test_tls();
  ASSERT_NE(options_.tls, nullptr);
  tls_ = make_tcp_transport({.streams = 2, .tls = options_.tls});
  options_.transports = {{tls_.get(), *tls_->expose(arena_->segment(), -1)}};
  auto listener =
      PeerListener::listen(reactor_, *parse_peer_address("tls:127.0.0.1:0"), options_,
                           arena_->shape(), [this](auto peer) { accepted_ = std::move(peer); });
  ASSERT_TRUE(listener) << listener.error().message;
  const std::string port = std::to_string((*listener)->port());
  address_ = "tls:127.0.0.1:" + port;
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed) << dialed.error().message;
  EXPECT_EQ((*dialed)->transport().name(), "tls");
  arena_->set_generation(2, 55);
  uint64_t generation = 0;
  EXPECT_EQ(read_now(*(*dialed)->remote(),
                     {{16, reinterpret_cast<std::byte*>(&generation), sizeof generation}}),
            TransferStatus::kOk);
  EXPECT_EQ(generation, 55U);
  const auto stranger = TlsContext::load(make_certificate("peer-stranger"));
  ASSERT_TRUE(stranger);
  auto other = options_;
  other.tls = stranger->get();
  EXPECT_FALSE(dial(other));
  other.tls = nullptr;
  const auto without = dial(other);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("--handoff-tls-cert"), std::string::npos);
  address_ = "tls:localhost:" + port;
  EXPECT_FALSE(dial(options_)) << "the certificate names the address only";
  address_ = "tcp:127.0.0.1:" + port;
  EXPECT_FALSE(dial(options_)) << "and without TLS there is no answer";
  dialed->reset();
  accepted_.reset();
  listener->reset();
  run(std::chrono::milliseconds(50));
}

TEST(PeerAddress, SaysWhatItWasMadeFrom) {
  for (const std::string text : {"unix:/a/b", "tcp:host:1", "tcp:[::1]:65535", "tls:10.0.0.1:80"}) {
    const auto parsed = parse_peer_address(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->text(), text);
  }
  for (const std::string text : {"", "unix:", "tcp:", "tcp:h", "tcp:h:", "tcp::1", "tcp:h:65536",
                                 "tcp:h:1x", "http://h", "udp:h:1"}) {
    EXPECT_FALSE(parse_peer_address(text)) << text;
  }
}

TEST_F(PeerTest, NobodyListeningIsAnErrorAtOnce) {
  const auto refused = dial(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "connect_failed");
}

TEST_F(PeerTest, WhereverAWorkerCanListenItCanBeReached) {
  const std::string folder = ::testing::TempDir();
  path_ = folder + std::string(107 - folder.size(), 's');
  listen();
  EXPECT_TRUE(dial(options_));
  listener_.reset();
  path_ += 's';
  EXPECT_FALSE(
      PeerListener::listen(reactor_, here(), options_, arena_->shape(), [](const auto&) {}));
  EXPECT_EQ(dial(options_).error().status, 502) << "never the client's fault";
}

TEST_F(PeerTest, ListeningNeverRemovesSomebodysFile) {
  std::ofstream(path_) << "precious";
  const auto listener =
      PeerListener::listen(reactor_, here(), options_, arena_->shape(), [](const auto&) {});
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().message,
            "The handoff socket " + path_ + " cannot be opened: Address already in use.");
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "precious");
  unlink(path_.c_str());
}

TEST_F(PeerTest, ASilentPeerIsLost) {
  options_.silence = std::chrono::milliseconds(200);
  options_.heartbeat = std::chrono::milliseconds(50);
  listen();
  auto quiet = options_;
  quiet.heartbeat = std::chrono::hours(1);
  auto dialed = dial(quiet);
  ASSERT_TRUE(dialed);
  // Not started: it neither reads nor sends, like a stopped process.
  bool closed = false;
  accepted_->start([](const protocol::HandoffFrame&) {}, [&] { closed = true; });
  run(std::chrono::milliseconds(150));
  EXPECT_FALSE(closed);
  run(std::chrono::milliseconds(400));
  EXPECT_TRUE(closed);
  (*dialed)->close();
}

TEST_F(PeerTest, ACloseBeforeTheStartIsToldAfterIt) {
  listen();
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed);
  (*dialed)->close();
  bool closed = false;
  (*dialed)->start([](const protocol::HandoffFrame&) {}, [&] { closed = true; });
  EXPECT_FALSE(closed);
  run(std::chrono::milliseconds(50));
  EXPECT_TRUE(closed);
  accepted_->close();
}

TEST_F(PeerTest, TheOtherSideLearnsOfACloseAtOnce) {
  listen();
  auto dialed = dial(options_);
  ASSERT_TRUE(dialed);
  bool closed = false;
  accepted_->start([](const protocol::HandoffFrame&) {}, [&] { closed = true; });
  (*dialed)->close();
  run(std::chrono::milliseconds(100));
  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace tandem::kv
