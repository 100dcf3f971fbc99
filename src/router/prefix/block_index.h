// BlockIndex: which lanes hold which blocks. A lane is one cache: of one worker, one data-parallel
// rank, one tier. In its lane a block has a name of the engine's, by which it is removed and its
// children find it.
//
// Two tables of 16-byte slots: names to keys for each lane, keys to lanes for all. A block that one
// lane holds takes 38 to 54 bytes. The number of entries is bounded so that the bytes are; when it
// is full, an entry goes for each that comes, the least recently touched of a few looked at.
//
// Not thread-safe: PrefixHolders has the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "numerics/flat_table.h"
#include "router/prefix/prefix_hash.h"

namespace tandem::router {

using LaneId = uint16_t;

class BlockIndex {
 public:
  explicit BlockIndex(size_t max_bytes);

  // Lanes of one group together hold what any of them does; a block counts as its best lane's
  // `weight`. Nothing: there are as many as there can be.
  std::optional<LaneId> add_lane(uint32_t group, float weight);
  // Nothing is found in the lane any more, and its number may be used again once sweep() has given
  // its entries back.
  void retire_lane(LaneId lane);
  // Takes up to so many entries of retired lanes out. True: there are more.
  bool sweep(size_t most);

  enum class Inserted : uint8_t { kNew, kAgain, kOtherKey };
  // Another one of the same name in the lane is counted: as many removals are needed.
  Inserted insert(LaneId lane, uint64_t name, BlockKey key);
  bool remove(LaneId lane, uint64_t name);  // false: it was not there
  std::optional<BlockKey> find(LaneId lane, uint64_t name) const;
  void touch(std::span<const BlockKey> keys);
  // Before some of these, which are their own names, are looked for in the lane or inserted: a
  // place that is not in the cache costs more than all the rest.
  void prefetch(LaneId lane, std::span<const BlockKey> keys) const;

  struct Held {
    uint32_t group = 0;
    int32_t blocks = 0;  // leading ones, in any lane of the group
    float credit = 0;    // the same, weighted
  };
  // Of a chain, by group, in no order; groups that hold nothing are left out. Looks at a few places
  // only, and takes it that who holds a block holds all before it.
  std::vector<Held> match(std::span<const BlockKey> chain) const;
  // Looks at every block.
  std::vector<Held> match_exactly(std::span<const BlockKey> chain) const;

  size_t entries() const { return entries_; }  // (lane, block) pairs
  size_t blocks() const { return blocks_.size(); }
  size_t bytes() const;
  uint64_t evictions() const { return evictions_; }

 private:
  using Blocks = FlatTable<8, 10>;  // first: key, age; second: holders
  using Names = FlatTable<0, 6>;    // first: name; second: key, count
  struct Lane {
    uint32_t group = 0;
    float weight = 1;
    bool retired = false;
    Names names;
  };
  struct Segment {
    size_t end;
    uint64_t holders;
  };
  static constexpr size_t kInline = 4;
  static constexpr uint64_t kSpilled = uint64_t{0xffff} << 48;
  static constexpr size_t kEntryBytes = 56;
  static constexpr size_t kFixedBytes = size_t{256} << 10;
  static constexpr size_t kLaneBytes = 20000;  // of an almost empty one

  static uint64_t named(uint64_t name) { return name == 0 ? 0x5bd1e995a7c15f0dULL : name; }
  static bool spilled(uint64_t holders) { return (holders & kSpilled) == kSpilled; }
  template <typename See>
  void each_lane(uint64_t holders, See see) const;
  void add_holder(uint64_t& holders, LaneId lane);
  void drop_holder(BlockKey key, LaneId lane);
  void set_holders(uint64_t& holders, std::span<const LaneId> lanes);
  bool same_lanes(uint64_t a, uint64_t b) const;
  uint64_t holders_of(BlockKey key) const;
  void evict();
  void bisect(std::span<const BlockKey> chain, size_t low, uint64_t at_low, size_t high,
              uint64_t at_high, std::vector<Segment>& out) const;
  std::vector<Held> add_up(std::span<const Segment> segments) const;

  size_t max_entries_;
  Blocks blocks_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by id; null: free
  size_t lane_count_ = 0;
  std::vector<LaneId> retired_;
  uint64_t sweep_place_ = 0;                 // in the last of them
  std::vector<std::vector<LaneId>> spills_;  // lanes of blocks that many hold, sorted
  std::vector<uint32_t> free_spills_;
  size_t spill_bytes_ = 0;
  size_t entries_ = 0;
  uint64_t inserts_ = 0;
  uint64_t evictions_ = 0;
  size_t hand_lane_ = 0;
  uint64_t hand_place_ = 0;
  uint8_t age_ = 0;
};

}  // namespace tandem::router
