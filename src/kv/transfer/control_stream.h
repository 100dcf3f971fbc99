// ControlStream: the byte stream under a PeerConnection: a Unix socket, TCP, or TLS on TCP.
//
// Addresses: "unix:/path", "tcp:host:port", "tls:host:port" ("[::1]" for an IPv6 host).
// Everything on the reactor's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "kv/transfer/host_lookup.h"
#include "kv/transfer/tls_context.h"
#include "net/reactor.h"

namespace tandem::kv {

struct PeerAddress {
  enum class Kind : uint8_t { kUnix, kTcp, kTls };
  Kind kind = Kind::kUnix;
  std::string path;  // kUnix
  std::string host;  // the others
  uint16_t port = 0;

  std::string text() const;
};
// Error 502 "handoff_protocol" with what is wrong.
Result<PeerAddress> parse_peer_address(const std::string& text);

class ControlStream {
 public:
  virtual ~ControlStream() = default;
  virtual boost::asio::awaitable<bool> read(void* into, size_t bytes) = 0;  // all of it
  virtual boost::asio::awaitable<bool> write(const std::string& bytes) = 0;
  virtual boost::asio::awaitable<bool> wait_readable() = 0;  // of a Unix socket only
  virtual void close() = 0;                                  // at once; what waits ends with false
  virtual int unix_socket() const = 0;                       // -1: it is none
};

// Errors: 502 "connect_failed", 504 "connect_timeout". `limit` bounds all of it: looking the host
// up, every address that is tried, TLS's handshake. `tls` is needed for "tls:" only and outlives
// the stream.
boost::asio::awaitable<Result<std::shared_ptr<ControlStream>>> dial_stream(
    net::Reactor& reactor, const PeerAddress& address, const TlsContext* tls, Duration limit,
    HostResolver resolver = {});

class ControlAcceptor {
 public:
  virtual ~ControlAcceptor() = default;  // closes, and removes a Unix socket's file
  virtual uint16_t port() const = 0;     // 0: a Unix socket
  using OnStream = std::function<void(std::shared_ptr<ControlStream>)>;
  // `limit`: of TLS's handshake. Error 500 "listen_failed".
  static Result<std::unique_ptr<ControlAcceptor>> listen(net::Reactor& reactor,
                                                         const PeerAddress& address,
                                                         const TlsContext* tls, Duration limit,
                                                         OnStream on_stream);
};

}  // namespace tandem::kv
