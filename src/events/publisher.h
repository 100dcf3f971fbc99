// Publisher: numbers payloads from 0, sends them to whoever subscribed, and repeats past ones on
// request: a request of 8 bytes, big-endian, asks for everything from that number on; the answers
// are [number, payload] each, then the number -1 with nothing.
//
// Past messages are kept within a byte bound. Who asks for what is no longer kept (or was never
// published: by an earlier start of this process, say) gets a snapshot instead, if there is one,
// under the number of the last message.
//
// A thread of its own; wake() may be called from any thread and never waits. A subscriber that is
// too slow loses messages (it then asks for them), never delays anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "events/zmq_socket.h"

namespace tandem::events {

struct PublisherOptions {
  std::string endpoint;         // "tcp://HOST:PORT"; port 0 ("tcp://HOST:*" too): the system picks
  std::string replay_endpoint;  // empty: nothing is repeated
  std::string topic = {};
  size_t ring_bytes = size_t{16} << 20;
  // As many messages at most: an answer to a request then fits below the high-water mark.
  size_t ring_messages = 8192;
  int high_water = 10000;  // messages that wait for one subscriber
};

class Publisher {
 public:
  // Both run on the publisher's thread.
  struct Source {
    std::function<std::string()> next;      // the next payload; empty: none now
    std::function<std::string()> snapshot;  // stands for all so far; null or empty: there is none
  };
  // Binds the sockets. Errors: 500 "zeromq".
  static Result<std::unique_ptr<Publisher>> create(PublisherOptions options, Source source);
  ~Publisher();

  void wake();  // any thread: next() has something
  // As bound, with the port that was picked.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }
  uint64_t published() const { return next_.load(std::memory_order_relaxed); }
  size_t ring_bytes() const { return ring_bytes_.load(std::memory_order_relaxed); }
  uint64_t replays() const { return replays_.load(std::memory_order_relaxed); }

 private:
  Publisher(PublisherOptions options, Source source);
  Status open();
  void run();
  void publish(std::string payload);
  void answer_replays();
  void replay(const std::string& asker, const std::string& delimiter, uint64_t from);

  PublisherOptions options_;
  Source source_;
  ZmqContext context_;
  WakeFd wake_;
  std::unique_ptr<ZmqSocket> socket_;
  std::unique_ptr<ZmqSocket> replay_socket_;
  std::string endpoint_;
  std::string replay_endpoint_;
  std::deque<std::string> ring_;  // the messages before next_
  std::atomic<size_t> ring_bytes_ = 0;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> replays_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::events
