// Sockets of libzmq as values. A context and its sockets belong to one thread; wake-ups come
// through a WakeFd, which any thread may signal.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::events {

using Frames = std::vector<std::string>;

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();  // after all of its sockets
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

enum class SocketKind : uint8_t { kPub, kSub, kRouter, kDealer };

class ZmqSocket {
 public:
  // Errors (here and below): 500 "zeromq" with libzmq's sentence.
  static Result<std::unique_ptr<ZmqSocket>> open(const ZmqContext& context, SocketKind kind);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  // Most messages that wait in either direction, and bytes of one that is accepted.
  Status bound(int messages, int64_t message_bytes);
  Status bind(const std::string& endpoint);
  Status connect(const std::string& endpoint);  // goes on by itself; says nothing of the peer
  Status subscribe(std::string_view topic);
  // Where bind() ended up ("tcp://127.0.0.1:5557" for port 0).
  std::string bound_endpoint() const;

  // Never waits. False: nobody takes it now, or an error.
  bool send(std::span<const std::string_view> frames);
  // The next message, if there is one whole; never waits. False: none, or more than `most` frames
  // (which are dropped).
  bool receive(Frames& frames, size_t most);

  // Connections of this socket that began since the last call. Watched from watch() on.
  Status watch();
  int new_connections();

  void* get() const { return socket_; }
  void* monitor() const { return monitor_; }

 private:
  ZmqSocket(const ZmqContext& context, void* socket) : context_(context), socket_(socket) {}
  Status set(int option, const void* value, size_t size);

  const ZmqContext& context_;
  void* socket_;
  void* monitor_ = nullptr;
};

class WakeFd {
 public:
  WakeFd();
  ~WakeFd();
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;
  void signal();  // any thread
  void drain();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Waits until one of the sockets (or monitors) can be read, the wake-up was signalled, or the time
// has passed.
void wait_readable(std::span<void* const> sockets, const WakeFd& wake, int milliseconds);

std::string sequence_bytes(uint64_t sequence);  // big-endian
bool read_sequence(std::string_view bytes, uint64_t& sequence);
inline constexpr uint64_t kEndOfReplay = ~uint64_t{0};

}  // namespace tandem::events
