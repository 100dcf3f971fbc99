// KvPublisher: tells the world which blocks this worker's prefix index holds, as KV events in
// vLLM's form (protocol/kv_events.h, events/publisher.h). Names are the blocks' ContentIds; a
// salted prompt's first block carries the hexadecimal root of its chain as its salt, never the salt
// itself.
//
// The engine thread only appends to a bounded queue. When that is full, everything is called
// cleared and what is stored from then on is told again. A mirror of what was told, on the
// publisher's thread, answers subscribers that come late.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "events/publisher.h"
#include "kv/manager/kv_observer.h"
#include "observe/metrics.h"
#include "protocol/kv_events.h"

namespace tandem::worker {

struct KvPublisherOptions {
  std::string endpoint;
  std::string replay_endpoint;  // empty: the port after the endpoint's
  std::string model;
  std::string lineage;
  int32_t block_tokens = 16;
  size_t queue_bytes = size_t{16} << 20;
  size_t ring_bytes = size_t{16} << 20;
};

class KvPublisher final : public kv::KvObserver {
 public:
  // Errors: 400 "bad_endpoint", 500 "zeromq".
  static Result<std::unique_ptr<KvPublisher>> create(KvPublisherOptions options,
                                                     observe::Metrics& metrics);

  void stored(const Stored& block) override;
  void removed(const protocol::ContentId& id) override;

  const std::string& endpoint() const { return publisher_->endpoint(); }
  const std::string& replay_endpoint() const { return publisher_->replay_endpoint(); }
  const std::string& topic() const { return topic_; }

 private:
  using Id = protocol::ContentId;
  struct Block {
    std::optional<Id> parent;
    std::vector<int32_t> tokens;
    std::string adapter;
    std::string salt;  // hexadecimal root; empty: there is no salt
  };
  struct Change {
    Id id;
    std::optional<Block> block;  // nothing: removed
    size_t bytes() const;
  };
  KvPublisher(KvPublisherOptions options, observe::Metrics& metrics);
  void push(Change change);
  // On the publisher's thread.
  std::string next();
  std::string snapshot() const;
  std::string encode(std::vector<protocol::KvEvent> events) const;
  void tell(const std::vector<Change>& changes, std::vector<protocol::KvEvent>& events);
  // Adds the block to the last event if it goes on where that ends. Views into the arguments.
  void append(const Id& id, const Block& block, std::vector<protocol::KvEvent>& events) const;

  KvPublisherOptions options_;
  std::string topic_;
  Id plain_root_;
  observe::Counter stored_, removed_, lost_;
  observe::Gauge queued_;

  std::mutex mutex_;
  std::deque<Change> queue_;
  size_t queue_bytes_ = 0;
  bool cleared_ = true;  // the next message begins with a clear: this is a new process, or lost

  std::unordered_map<Id, Block, protocol::ContentIdHash> mirror_;
  std::unique_ptr<events::Publisher> publisher_;  // its thread ends first
};

}  // namespace tandem::worker
