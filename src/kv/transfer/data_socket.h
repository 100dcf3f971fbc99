// DataSocket: one data stream of the TCP transport, plain or TLS, used by one thread; shut_down()
// may come from another and ends what that thread waits for. Blocking, in ticks: an operation that
// makes no progress within kTick returns, so that its caller can look at deadlines.
#pragma once

#include <memory>
#include <string>

#include <sys/uio.h>

#include "base/clock.h"
#include "base/result.h"
#include "kv/transfer/tls_context.h"

struct ssl_st;

namespace tandem::kv {

class DataSocket {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(50);
  struct Io {
    enum Kind { kBytes, kLater, kEnd } kind = kEnd;  // kLater: nothing within a tick
    size_t bytes = 0;
  };

  // Takes `file`, a connected socket.
  explicit DataSocket(int file);
  ~DataSocket();
  DataSocket(const DataSocket&) = delete;
  DataSocket& operator=(const DataSocket&) = delete;

  // `host`: the server must be; empty: this is the server.
  bool start_tls(const TlsContext& tls, const std::string& host, TimePoint until);
  bool is_tls() const { return ssl_ != nullptr; }

  Io read_some(const iovec* pieces, int count);
  Io write_some(const iovec* pieces, int count, bool more);
  Io send_file(int file, uint64_t offset, size_t bytes);  // plain only
  bool read_all(void* into, size_t bytes, TimePoint until);
  bool write_all(const void* from, size_t bytes, TimePoint until, bool more = false);
  bool send_file_all(int file, uint64_t offset, size_t bytes, TimePoint until);

  void shut_down();  // any thread, while this lives
  int file() const { return file_; }

 private:
  Io of_tls(int result);
  int file_;
  ssl_st* ssl_ = nullptr;
};

}  // namespace tandem::kv
