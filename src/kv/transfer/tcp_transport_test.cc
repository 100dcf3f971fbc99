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
  EXPECT_FALSE(plain->connect(exposer->descriptor));
  const auto reader = Reader::start(subject(test_tls()));
  const auto remote = reader->connect(exposer->descriptor);
  EXPECT_TRUE(remote) << remote.error().message;
}

}  // namespace
}  // namespace tandem::kv
