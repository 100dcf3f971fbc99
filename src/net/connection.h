// Connection: a Stream with a read buffer that fills by itself, so that a peer's close is noticed
// while nobody reads. The buffer stops filling at kReadHighWater until bytes are consumed:
// back-pressure to the peer.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/event.h"
#include "net/stream.h"

namespace tandem::net {

inline constexpr size_t kReadHighWater = 256UL << 10;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Reactor& reactor, std::unique_ptr<Stream> stream);
  ~Connection();

  void start();  // begins to read
  // How many bytes may lie here unread; more stay with the peer. kReadHighWater unless it is set.
  void limit_unread(size_t bytes) { high_water_ = bytes; }

  // Good until the next wait.
  std::string_view buffered() const {
    return lent_.empty() ? std::string_view(buffer_).substr(begin_) : lent_;
  }
  void consume(size_t bytes);

  enum class Wait { kData, kEnd, kFailed, kTimeout };
  // Until bytes arrive that were not there before the last consume() or wait_more(). After the
  // peer's end: kEnd.
  asio::awaitable<Wait> wait_more(Duration limit);

  // All of the pieces, whose bytes must stay; false when the peer is gone or `limit` passed without
  // progress to the end.
  asio::awaitable<bool> write(std::initializer_list<std::string_view> pieces, Duration limit);
  asio::awaitable<bool> write_all(const std::vector<std::string_view>& pieces, Duration limit);

  // Runs once when the peer closes or the connection fails (not for close() here).
  void on_gone(std::function<void()> action) { on_gone_ = std::move(action); }
  // Runs each time bytes arrive.
  void on_data(std::function<void()> action) { on_data_ = std::move(action); }

  void shutdown_send() { stream_->shutdown_send(); }
  void close(bool reset = false);
  bool closed() const { return closed_; }
  bool gone() const { return closed_ || ended_ || failed_; }
  std::string remote() const { return stream_->remote(); }

 private:
  asio::awaitable<bool> write_vectors(std::vector<iovec> vectors, Duration limit);
  void pump();
  bool fill();
  void show(std::string_view bytes);
  void peer_gone();

  std::unique_ptr<Stream> stream_;
  std::string buffer_;
  // What was just read, still where the kernel put it: whoever waits for bytes gets to see them
  // there first, and what it leaves is buffered.
  std::string_view lent_;
  size_t begin_ = 0;
  size_t high_water_ = kReadHighWater;
  size_t seen_ = 0;  // buffered bytes that a waiter already knows
  bool reading_ = false;
  bool ended_ = false;
  bool failed_ = false;
  bool closed_ = false;
  bool writing_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_data_;
  Event readable_;
  Event writable_;
};

}  // namespace tandem::net
