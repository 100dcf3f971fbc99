// CopyPool: threads that copy bytes from a source which may go away. Internal to local_transport.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kv/transfer/transport.h"

namespace tandem::kv {

// Memory of a peer. Thread-safe.
class CopySource {
 public:
  virtual ~CopySource() = default;
  virtual uint64_t bytes() const = 0;
  // Between pin and unpin the bytes may be read; null: they are gone.
  virtual const std::byte* pin() = 0;
  virtual void unpin() = 0;
  virtual bool alive() = 0;  // asked once all bytes of a batch were copied
};

class CopyPool {
 public:
  struct Peer {  // counts are guarded by the pool's lock
    std::shared_ptr<CopySource> source;
    std::atomic<bool> closed = false;
    int running = 0;
    uint64_t bytes_in_flight = 0;
  };

  explicit CopyPool(int threads, uint64_t max_bytes_in_flight);
  ~CopyPool();  // every peer is closed
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  TransferStatus post(const std::shared_ptr<Peer>& peer, std::span<const Read> reads,
                      Duration limit, Remote::Done done);
  void close(const std::shared_ptr<Peer>& peer);
  uint64_t bytes_in_flight(const Peer& peer);

 private:
  struct Job {
    std::shared_ptr<Peer> peer;
    std::vector<Read> reads;
    uint64_t bytes;
    TimePoint deadline;
    Remote::Done done;
  };
  void run();
  TransferStatus copy(const Job& job);

  const uint64_t max_bytes_in_flight_;
  std::mutex lock_;
  std::condition_variable work_;
  std::condition_variable settled_;  // a peer has nothing running
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::kv
