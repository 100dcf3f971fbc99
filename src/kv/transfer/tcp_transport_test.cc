// What only TCP has: who may attach.
#include "kv/transfer/tcp_transport.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kv/transfer/tcp_wire.h"
#include "kv/transfer/test_certificate.h"
#include "kv/transfer/transport_subject.h"

namespace tandem::kv {
namespace {

TransportSubject subject(const TlsContext* tls = nullptr) {
  TransportSubject out{.name = "tcp", .make = [tls](uint64_t bound) {
                         return Result<std::unique_ptr<Transport>>(make_tcp_transport(
                             {.streams = 2, .max_bytes_in_flight = bound, .tls = tls}));
                       }};
  out.make_receiver = out.make;
  return out;
}

TEST(TcpTransport, OnlyTheHolderOfAnAdmittedKeyAttaches) {
  const auto exposer = Exposer::start(subject());
  const auto reader = Reader::start(subject());
  for (const PeerKey& key :
       {PeerKey{"another-peer-000", std::string(32, 'k')},
        PeerKey{test_key().id, std::string(32, 'x')}, PeerKey{test_key().id, ""}}) {
    const auto refused = reader->connect(exposer->descriptor, key);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, "transfer_refused");
  }
  EXPECT_TRUE(reader->connect(exposer->descriptor));
}

TEST(TcpTransport, AnExpelledPeerReadsNothingMore) {
  const auto exposer = Exposer::start(subject());
  const auto reader = Reader::start(subject());
  auto remote = reader->connect(exposer->descriptor);
  ASSERT_TRUE(remote);
  ASSERT_EQ(read_now(**remote, {{0, reader->memory.data(), 100}}), TransferStatus::kOk);
  std::vector<Ending> endings(8);
  for (const auto& ending : endings) {
    const Read read{0, reader->memory.data(), 4 << 20};
    ASSERT_EQ((*remote)->post({&read, 1}, std::chrono::seconds(5), Ending(ending).done()),
              TransferStatus::kOk);
  }
  exposer->transport->expel(test_key().id);
  EXPECT_EQ(read_now(**remote, {{0, reader->memory.data(), 100}}), TransferStatus::kLost);
  for (const auto& ending : endings) (void)ending.get();
  EXPECT_FALSE(reader->connect(exposer->descriptor));
  exposer->transport->admit(test_key());
  EXPECT_TRUE(reader->connect(exposer->descriptor));
}

// Somebody who speaks another protocol is dropped and disturbs nobody.
TEST(TcpTransport, StrangersAreDropped) {
  const auto exposer = Exposer::start(subject());
  const auto address = tcp::decode_address(exposer->descriptor.bytes);
  ASSERT_TRUE(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address->port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(file, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const std::string said(tcp::kAttachBytes, 'G');
  ASSERT_EQ(send(file, said.data(), said.size(), 0), static_cast<ssize_t>(said.size()));
  char bytes[256];
  while (recv(file, bytes, sizeof bytes, 0) > 0) {
  }
  close(file);
  const auto reader = Reader::start(subject());
  auto remote = reader->connect(exposer->descriptor);
  ASSERT_TRUE(remote);
  EXPECT_EQ(read_now(**remote, {{3, reader->memory.data(), 100}}), TransferStatus::kOk);
}

TEST(TcpTransport, TlsWantsACertificateOfTheOwnAuthorities) {
  const auto exposer = Exposer::start(subject(test_tls()));
  const auto other = TlsContext::load(make_certificate("stranger"));
  ASSERT_TRUE(other);
  const auto stranger = Reader::start(subject(other->get()));
  EXPECT_FALSE(stranger->connect(exposer->descriptor));
  const auto plain = Reader::start(subject());
  EXPECT_FALSE(plain->connect(exposer->descriptor, test_key(), std::chrono::milliseconds(500)));
  const auto reader = Reader::start(subject(test_tls()));
  const auto remote = reader->connect(exposer->descriptor);
  EXPECT_TRUE(remote) << remote.error().message;
}

// Keeps every fourth byte, plus the view's number; pieces of 4 KiB, or of 4 MiB.
class EveryFourth final : public SourceViews {
 public:
  Shape shape(uint16_t view) const override {
    const uint64_t piece = view == 3 ? uint64_t{4} << 20 : 4096;
    return view >= 1 && view <= 3 ? Shape{piece, piece / 4} : Shape{};
  }
  void write(uint16_t view, const std::byte* source, std::byte* target) const override {
    for (uint64_t i = 0; i < shape(view).bytes; ++i)
      target[i] = static_cast<std::byte>(static_cast<uint8_t>(source[4 * i]) + view);
  }
};

struct Viewed {
  explicit Viewed(const std::shared_ptr<const SourceViews>& views) {
    TransportSubject with = subject();
    with.make = [views](uint64_t bound) {
      auto made = make_tcp_transport({.streams = 2, .max_bytes_in_flight = bound});
      if (views) EXPECT_TRUE(made->serve_views(views));
      return Result<std::unique_ptr<Transport>>(std::move(made));
    };
    exposer = Exposer::start(with);
    reader = Reader::start(subject());
    remote = std::move(*reader->connect(exposer->descriptor));
  }
  std::unique_ptr<Exposer> exposer;
  std::unique_ptr<Reader> reader;
  std::shared_ptr<Remote> remote;
};

// Pieces of two views, of the memory as it is, and one larger than what is asked for at once.
TEST(TcpTransport, ReadsThroughAViewArriveTurnedAmongOthersThatDoNot) {
  const Viewed made(std::make_shared<EveryFourth>());
  std::vector<Read> reads;
  std::byte* into = made.reader->memory.data();
  for (uint64_t i = 0; i < 1500; ++i) {
    const auto view = static_cast<uint16_t>(i % 7 == 3 ? 0 : i % 50 < 25 ? 1 : 2);
    reads.push_back({4096 * i, into, view == 0 ? 777U : 1024U, view});
    into += reads.back().bytes;
  }
  reads.push_back({uint64_t{8} << 20, into, uint64_t{1} << 20, 3});
  ASSERT_EQ(read_now(*made.remote, reads), TransferStatus::kOk);
  for (const Read& read : reads) {
    const uint64_t step = read.view == 0 ? 1 : 4;
    for (uint64_t i = 0; i < read.bytes; ++i) {
      ASSERT_EQ(read.into[i],
                static_cast<std::byte>(static_cast<uint8_t>(pattern_byte(read.offset + step * i)) +
                                       read.view));
    }
  }
}

TEST(TcpTransport, AViewThatIsNotThereIsRefusedAndTheStreamGoesOn) {
  for (const bool some : {false, true}) {
    const Viewed made(some ? std::make_shared<EveryFourth>() : nullptr);
    std::byte* into = made.reader->memory.data();
    const uint64_t end = made.exposer->memory().size();
    for (const Read& read : {Read{0, into, 1024, 4}, Read{0, into, 1023, 1}, Read{4, into, 1024, 1},
                             Read{end - 1024, into, 1024, 1}, Read{0, into, 1025, 1}}) {
      EXPECT_EQ(read_now(*made.remote, {read}), TransferStatus::kInvalid);
    }
    EXPECT_EQ(read_now(*made.remote, {Read{0, into, 1024, 1}}),
              some ? TransferStatus::kOk : TransferStatus::kInvalid);
    EXPECT_EQ(read_now(*made.remote, {Read{0, into, 1024}}), TransferStatus::kOk);
  }
}

// So that a build from before there were views reads what it always read.
TEST(TcpTransport, ARequestWithoutAViewIsTheSameBytesAsEver) {
  std::byte nowhere{};
  const Read plain[] = {{0x1122, &nowhere, 0x33, 0}};
  const std::string bytes = tcp::encode_request(7, plain);
  const std::string expected(
      "TDRQ"
      "\1\0\0\0"
      "\7\0\0\0\0\0\0\0"
      "\x33\0\0\0\0\0\0\0"
      "\x22\x11\0\0\0\0\0\0"
      "\x33\0\0\0\0\0\0\0",
      40);
  EXPECT_EQ(bytes, expected);
  const Read viewed[] = {{0x1122, &nowhere, 0x33, 5}};
  const auto header = tcp::decode_request_header(tcp::encode_request(7, viewed).substr(0, 24));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->view, 5);
  EXPECT_EQ(header->count, 1U);
}

}  // namespace
}  // namespace tandem::kv
