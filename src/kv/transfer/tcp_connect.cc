// Dialing the data streams of one peer.
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kv/transfer/tcp_remote.h"
#include "numerics/hmac.h"

namespace tandem::kv::tcp {
namespace {

tl::unexpected<Error> lost(const std::string& why) {
  return make_error(502, "transfer_lost",
                    "The peer's KV data streams cannot be opened: " + why + ".");
}

int left_ms(TimePoint until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

// A connected, blocking socket, or -1.
int dial(const HostAddress& to, TimePoint until) {
  const int file = socket(to.name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (file < 0) return -1;
  int error = 0;
  socklen_t size = sizeof error;
  if (connect(file, reinterpret_cast<const sockaddr*>(&to.name), to.bytes) != 0) {
    pollfd waits{file, POLLOUT, 0};
    if (errno != EINPROGRESS || poll(&waits, 1, left_ms(until)) != 1 ||
        getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      close(file);
      return -1;
    }
  }
  fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
  return file;
}

Status attach(DataSocket& socket, const Address& address, const std::string& host,
              const PeerKey& key, const TlsContext* tls, TimePoint until) {
  if (tls != nullptr && !socket.start_tls(*tls, host, until)) return lost("TLS failed");
  std::string bytes(kChallengeBytes, '\0');
  if (!socket.read_all(bytes.data(), bytes.size(), until)) return lost("no challenge came");
  const auto challenge = decode_challenge(bytes);
  if (!challenge) return lost("it speaks another protocol or version");
  Attach attach{address.epoch, key.id, numerics::random_bytes(kNonceBytes), {}};
  attach.proof = attach_proof(key.key, *challenge, attach);
  const std::string said = encode_attach(attach);
  bytes.resize(kWelcomeBytes);
  if (!socket.write_all(said.data(), said.size(), until) ||
      !socket.read_all(bytes.data(), bytes.size(), until)) {
    return lost("no answer came");
  }
  const auto welcome = decode_welcome(bytes);
  if (!welcome) return lost("it answered nonsense");
  if (welcome->refusal == Refusal::kEpoch)
    return make_error(502, "transfer_refused", "The peer was restarted: its memory is another.");
  if (welcome->refusal != Refusal::kNone ||
      !numerics::equal_constant_time(welcome->proof,
                                     welcome_proof(key.key, *challenge, attach.nonce))) {
    return make_error(502, "transfer_refused", "The peer did not accept the data stream's proof.");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Remote>> connect_remote(const Address& address, const std::string& host,
                                               const PeerKey& key, const RemoteOptions& options,
                                               TimePoint until) {
  if (key.id.size() != kIdBytes) return internal_error("A data stream's key has no id.");
  const HostAddresses found = look_up_host_until(options.resolver, host, address.port, until);
  if (!found) {
    return make_error(found.error().status,
                      found.error().status == 504 ? "transfer_timeout" : "transfer_lost",
                      found.error().message);
  }
  std::vector<std::unique_ptr<DataSocket>> sockets;
  for (int i = 0; i < options.streams; ++i) {
    int file = -1;
    for (size_t at = 0; at < found->size() && file < 0; ++at) file = dial((*found)[at], until);
    if (file < 0) return lost("nobody answers at " + host + ":" + std::to_string(address.port));
    sockets.push_back(std::make_unique<DataSocket>(file));
    TANDEM_CHECK(attach(*sockets.back(), address, host, key, options.tls, until));
  }
  return std::make_shared<TcpRemote>(address.exposed, options, std::move(sockets));
}

}  // namespace tandem::kv::tcp
