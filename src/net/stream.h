// Stream: a connected byte stream without blocking calls, so that HTTP is compiled once for any
// transport. TCP is in tcp.cc, TLS in tls.cc. Used by net's own sources and by
// tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <sys/uio.h>

#include "base/result.h"
#include "net/reactor.h"

namespace tandem::net {

struct IoResult {
  enum class Kind { kDone, kWouldBlock, kEnd, kFailed };
  Kind kind = Kind::kFailed;
  size_t bytes = 0;  // with kDone
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual IoResult try_read(char* into, size_t size) = 0;
  virtual IoResult try_write(const iovec* pieces, int count) = 0;
  // `action` runs once, later, when the stream may be readable or writable, failed or was closed
  // here.
  virtual void wait_readable(std::function<void()> action) = 0;
  virtual void wait_writable(std::function<void()> action) = 0;
  virtual void shutdown_send() = 0;
  virtual void close(bool reset) = 0;  // reset: the peer sees RST
  virtual std::string remote() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual uint16_t port() const = 0;
  // One stream per call, or nullptr when accepting failed (out of descriptors: try again after a
  // pause).
  virtual void accept(std::function<void(std::unique_ptr<Stream>)> action) = 0;
  virtual void close() = 0;
};

Result<std::unique_ptr<Listener>> listen_tcp(Reactor& reactor, const std::string& host,
                                             uint16_t port);

// Errors: 502 "connect_refused", "connect_failed"; 504 "connect_timeout"; "cancelled". The returned
// function cancels; it is harmless later. `action` runs exactly once, never inside this call.
using ConnectAction = std::function<void(Result<std::unique_ptr<Stream>>)>;
std::function<void()> connect_tcp(Reactor& reactor, const std::string& host, uint16_t port,
                                  Duration limit, ConnectAction action);
// The same with TLS on top: the certificate must be good and name `host`. Errors also: 502
// "tls_failed".
std::function<void()> connect_tls(Reactor& reactor, const std::string& host, uint16_t port,
                                  Duration limit, ConnectAction action);

// Authorities whose certificates are good besides the system's: PEM. For the whole process; before
// the first connection. Errors: 400 "bad_certificate".
Status trust_also(const std::string& file);

// What a server shows to its clients: a certificate chain and its key, PEM files. Immutable.
class TlsIdentity {
 public:
  // Errors: 400 "bad_certificate".
  static Result<std::shared_ptr<const TlsIdentity>> load(const std::string& certificate_file,
                                                         const std::string& key_file);
  ~TlsIdentity();
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // TLS on top of an accepted stream; null when OpenSSL fails.
  std::unique_ptr<Stream> serve(Reactor& reactor, std::unique_ptr<Stream> stream) const;

 private:
  struct Impl;
  explicit TlsIdentity(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::net
