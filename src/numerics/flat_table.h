// FlatTable: a hash table of pairs of 64-bit words, 16 bytes each and nothing else. Open addressing
// with linear probing, no tombstones; cut into shards that grow and shrink one by one, so that no
// single step takes long. Between 0.6 and 0.85 of the slots are used once a shard has more than a
// few.
//
// The first word's bits from kShift on are the key, never zero; those below belong to the caller.
// Not thread-safe. References are valid until the next insert() or erase().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "numerics/mix.h"

namespace tandem {

template <int kShift, int kShardBits>
class FlatTable {
 public:
  struct Slot {
    uint64_t first = 0;
    uint64_t second = 0;
    uint64_t key() const { return first >> kShift; }
  };
  static_assert(sizeof(Slot) == 16);

  FlatTable() : shards_(size_t{1} << kShardBits) {}

  // Null: not there.
  Slot* find(uint64_t key) {
    const uint64_t hash = mix64(key);
    Shard& shard = shards_[shard_of(hash)];
    if (shard.slots.empty()) return nullptr;
    for (size_t at = home(hash, shard);; at = next(at, shard)) {
      Slot& slot = shard.slots[at];
      if (slot.first == 0) return nullptr;
      if (slot.key() == key) return &slot;
    }
  }
  const Slot* find(uint64_t key) const { return const_cast<FlatTable*>(this)->find(key); }

  void prefetch(uint64_t key) const {
    const uint64_t hash = mix64(key);
    const Shard& shard = shards_[shard_of(hash)];
    if (!shard.slots.empty()) __builtin_prefetch(&shard.slots[home(hash, shard)]);
  }

  // A new slot with both words zero except for the key, which must not be there yet.
  Slot& insert(uint64_t key) {
    const uint64_t hash = mix64(key);
    Shard& shard = shards_[shard_of(hash)];
    if ((shard.used + 1) * 20 > shard.slots.size() * 17)
      resize(shard, shard.slots.size() + shard.slots.size() / 4 + 8);
    ++shard.used;
    ++size_;
    size_t at = home(hash, shard);
    while (shard.slots[at].first != 0) at = next(at, shard);
    shard.slots[at].first = key << kShift;
    return shard.slots[at];
  }

  void erase(Slot& slot) {
    Shard& shard = shards_[shard_of(mix64(slot.key()))];
    size_t hole = static_cast<size_t>(&slot - shard.slots.data());
    for (size_t at = next(hole, shard); shard.slots[at].first != 0; at = next(at, shard)) {
      const size_t wanted = home(mix64(shard.slots[at].key()), shard);
      // It may move back unless its home lies behind the hole.
      if (distance(wanted, at, shard) < distance(hole, at, shard)) continue;
      shard.slots[hole] = shard.slots[at];
      hole = at;
    }
    shard.slots[hole] = Slot{};
    --shard.used;
    --size_;
    if (shard.slots.size() > 32 && shard.used * 5 < shard.slots.size() * 3)
      resize(shard, shard.used + shard.used / 4 + 8);
  }

  // The next used slot at or behind a place that only makes sense here; wraps around. Null: empty.
  Slot* sweep(uint64_t& place) {
    if (size_ == 0) return nullptr;
    while (true) {
      const size_t index = (place >> 40) % shards_.size();
      Shard& shard = shards_[index];
      for (size_t at = place & kLowBits; at < shard.slots.size(); ++at) {
        if (shard.slots[at].first == 0) continue;
        place = uint64_t{index} << 40 | (at + 1);
        return &shard.slots[at];
      }
      place = uint64_t{(index + 1) % shards_.size()} << 40;
    }
  }

  size_t size() const { return size_; }
  size_t bytes() const { return bytes_ + shards_.size() * sizeof(Shard); }

 private:
  static constexpr uint64_t kLowBits = (uint64_t{1} << 40) - 1;
  struct Shard {
    std::vector<Slot> slots;
    size_t used = 0;
  };

  static size_t shard_of(uint64_t hash) { return hash >> (64 - kShardBits); }
  static size_t home(uint64_t hash, const Shard& shard) {
    return static_cast<size_t>((hash & 0xffffffffULL) * shard.slots.size() >> 32);
  }
  static size_t next(size_t at, const Shard& shard) {
    return at + 1 == shard.slots.size() ? 0 : at + 1;
  }
  static size_t distance(size_t from, size_t to, const Shard& shard) {
    return to >= from ? to - from : to + shard.slots.size() - from;
  }

  void resize(Shard& shard, size_t capacity) {
    std::vector<Slot> old(capacity);
    old.swap(shard.slots);
    bytes_ += (capacity - old.size()) * sizeof(Slot);
    for (const Slot& slot : old) {
      if (slot.first == 0) continue;
      size_t at = home(mix64(slot.key()), shard);
      while (shard.slots[at].first != 0) at = next(at, shard);
      shard.slots[at] = slot;
    }
  }

  std::vector<Shard> shards_;
  size_t size_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tandem
