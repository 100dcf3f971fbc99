// PrefixMap: which workers are expected to hold which blocks. An expectation, not a truth: workers
// evict on their own; a wrong entry costs a recomputation, never a wrong answer.
//
// Bounded by bytes, least recently used blocks go first. One owner; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "protocol/content_id.h"
#include "router/policy/types.h"

namespace tandem::router {

class PrefixMap {
 public:
  explicit PrefixMap(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `worker` now holds these blocks, which are a chain from the root.
  void insert(std::span<const protocol::ContentId> blocks, WorkerId worker);
  // Leading blocks held, by worker id, for ids below `workers`. Touches what it finds.
  std::vector<int32_t> match(std::span<const protocol::ContentId> blocks, size_t workers);
  // The worker's memory is gone (a new epoch).
  void clear_worker(WorkerId worker);

  size_t blocks() const { return index_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Node {
    protocol::ContentId id;
    std::vector<WorkerId> workers;
    uint32_t older;
    uint32_t newer;
  };
  static constexpr uint32_t kNone = ~0U;
  // A node, its hash entry and their allocations, rounded up.
  static constexpr size_t kNodeBytes = sizeof(Node) + 80;

  void touch(uint32_t node);
  void unlink(uint32_t node);
  void remove(uint32_t node);
  void trim();

  size_t max_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<protocol::ContentId, uint32_t, protocol::ContentIdHash> index_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
};

}  // namespace tandem::router
