// BlockCache: which blocks a simulated engine holds. Blocks in use are pinned; the others are its
// prefix cache, least recently used first out. Counts blocks that stand for memory without a name
// (answers, partial blocks) too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::sim {

class BlockCache {
 public:
  explicit BlockCache(size_t capacity) : capacity_(capacity) {}

  // Leading blocks that are held.
  size_t match(std::span<const uint64_t> chain) const;
  // True: `blocks` more fit when everything unpinned is evicted.
  bool fits(size_t blocks) const { return pinned_ + reserved_ + blocks <= capacity_; }
  // Of leading blocks that match, those that nobody has pinned yet: they need room too.
  size_t unpinned(std::span<const uint64_t> held) const;

  void pin(std::span<const uint64_t> held);      // each must be held
  void unpin(std::span<const uint64_t> held);    // becomes cache, the end of the chain oldest
  void insert(std::span<const uint64_t> chain);  // as cache; what does not fit is left out
  void reserve(size_t blocks);
  void release(size_t blocks) { reserved_ -= blocks; }
  void clear();

  // What came and went since the last call, in order.
  struct Change {
    uint64_t block = 0;
    std::optional<uint64_t> parent = {};  // of one that came: what it follows; nothing: the first
    bool came = false;
  };
  std::vector<Change> take_changes() { return std::exchange(changes_, {}); }
  size_t blocks() const { return blocks_.size(); }
  size_t capacity() const { return capacity_; }

 private:
  struct Block {
    int32_t pins = 0;
    std::list<uint64_t>::iterator place{};  // in order_, while it has no pins
  };
  bool make_room();

  size_t capacity_;
  size_t pinned_ = 0;
  size_t reserved_ = 0;
  std::unordered_map<uint64_t, Block> blocks_;
  std::list<uint64_t> order_;  // unpinned, the oldest first
  std::vector<Change> changes_;
};

}  // namespace tandem::sim
