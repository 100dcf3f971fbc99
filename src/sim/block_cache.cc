#include "sim/block_cache.h"

#include <cassert>

namespace tandem::sim {

size_t BlockCache::match(std::span<const uint64_t> chain) const {
  size_t held = 0;
  while (held < chain.size() && blocks_.contains(chain[held])) ++held;
  return held;
}

size_t BlockCache::unpinned(std::span<const uint64_t> held) const {
  size_t count = 0;
  for (const uint64_t id : held) count += blocks_.at(id).pins == 0 ? 1 : 0;
  return count;
}

void BlockCache::pin(std::span<const uint64_t> held) {
  for (const uint64_t id : held) {
    Block& block = blocks_.at(id);
    if (block.pins++ > 0) continue;
    order_.erase(block.place);
    ++pinned_;
  }
}

void BlockCache::unpin(std::span<const uint64_t> held) {
  for (size_t i = held.size(); i-- > 0;) {
    Block& block = blocks_.at(held[i]);
    assert(block.pins > 0);
    if (--block.pins > 0) continue;
    block.place = order_.insert(order_.end(), held[i]);
    --pinned_;
  }
}

// One block's room, from the cache if need be.
bool BlockCache::make_room() {
  if (pinned_ + reserved_ + order_.size() < capacity_) return true;
  if (order_.empty()) return false;
  changes_.push_back({.block = order_.front()});
  blocks_.erase(order_.front());
  order_.pop_front();
  return true;
}

void BlockCache::insert(std::span<const uint64_t> chain) {
  // What is there becomes new; what is not is added behind it.
  for (size_t i = chain.size(); i-- > 0;) {
    const auto found = blocks_.find(chain[i]);
    if (found != blocks_.end() && found->second.pins == 0)
      order_.splice(order_.end(), order_, found->second.place);
  }
  std::optional<uint64_t> parent;
  for (const uint64_t id : chain) {
    if (!blocks_.contains(id)) {
      if (!make_room()) return;
      blocks_[id] = {0, order_.insert(order_.end(), id)};
      changes_.push_back({id, parent, true});
    }
    parent = id;
  }
}

void BlockCache::reserve(size_t blocks) {
  reserved_ += blocks;
  while (pinned_ + reserved_ + order_.size() > capacity_ && !order_.empty()) {
    changes_.push_back({.block = order_.front()});
    blocks_.erase(order_.front());
    order_.pop_front();
  }
}

void BlockCache::clear() {
  for (const auto& [id, block] : blocks_) changes_.push_back({.block = id});
  blocks_.clear();
  order_.clear();
  pinned_ = reserved_ = 0;
}

}  // namespace tandem::sim
