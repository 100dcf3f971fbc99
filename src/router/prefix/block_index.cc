#include "router/prefix/block_index.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace tandem::router {

namespace {

constexpr size_t kLooks = 8;           // entries looked at for one that goes
constexpr uint64_t kCountMask = 0xff;  // of a name's second word
constexpr uint64_t kAgeMask = 0xff;    // of a block's first word
constexpr uint64_t kAgesPerFill = 64;  // ages that pass while the index is filled once
constexpr size_t kShortChain = 64;     // looked at block by block

}  // namespace

BlockIndex::BlockIndex(size_t max_bytes)
    : max_entries_(
          std::max<size_t>((max_bytes - std::min(max_bytes, kFixedBytes)) / kEntryBytes, 1024)) {}

size_t BlockIndex::bytes() const {
  size_t sum = blocks_.bytes() + spill_bytes_ + spills_.capacity() * sizeof(std::vector<LaneId>) +
               free_spills_.capacity() * sizeof(uint32_t);
  for (const auto& lane : lanes_) sum += lane ? sizeof(Lane) + lane->names.bytes() : 0;
  return sum;
}

std::optional<LaneId> BlockIndex::add_lane(uint32_t group, float weight) {
  auto lane = std::make_unique<Lane>();
  lane->group = group;
  lane->weight = weight;
  ++lane_count_;
  for (size_t id = 0; id < lanes_.size(); ++id) {
    if (lanes_[id] != nullptr) continue;
    lanes_[id] = std::move(lane);
    return static_cast<LaneId>(id);
  }
  if (lanes_.size() >= 0xfff0) {
    --lane_count_;
    return std::nullopt;
  }
  lanes_.push_back(std::move(lane));
  return static_cast<LaneId>(lanes_.size() - 1);
}

void BlockIndex::retire_lane(LaneId lane) {
  lanes_[lane]->retired = true;
  retired_.push_back(lane);
  sweep_place_ = 0;
}

bool BlockIndex::sweep(size_t most) {
  while (!retired_.empty()) {
    const LaneId lane = retired_.back();
    Names& names = lanes_[lane]->names;
    for (; most > 0 && names.size() > 0; --most) {
      Names::Slot* const slot = names.sweep(sweep_place_);
      const BlockKey key = slot->second >> 8;
      names.erase(*slot);
      --sweep_place_;  // another entry may have moved there
      --entries_;
      drop_holder(key, lane);
    }
    if (names.size() > 0) return true;
    lanes_[lane].reset();
    --lane_count_;
    retired_.pop_back();
    sweep_place_ = 0;
  }
  return false;
}

// --- holders: up to four lane numbers plus one, ascending from the low end; or a list elsewhere.

template <typename See>
void BlockIndex::each_lane(uint64_t holders, See see) const {
  if (spilled(holders)) {
    for (const LaneId lane : spills_[holders & 0xffffffffU]) see(lane);
    return;
  }
  for (; holders != 0; holders >>= 16) see(static_cast<LaneId>((holders & 0xffff) - 1));
}

bool BlockIndex::same_lanes(uint64_t a, uint64_t b) const {
  if (a == b) return true;
  if (!spilled(a) || !spilled(b)) return false;
  return spills_[a & 0xffffffffU] == spills_[b & 0xffffffffU];
}

void BlockIndex::set_holders(uint64_t& holders, std::span<const LaneId> lanes) {
  if (spilled(holders)) {
    const auto at = static_cast<uint32_t>(holders & 0xffffffffU);
    spill_bytes_ -= spills_[at].capacity() * sizeof(LaneId);
    if (lanes.size() > kInline) {
      spills_[at].assign(lanes.begin(), lanes.end());
      spill_bytes_ += spills_[at].capacity() * sizeof(LaneId);
      return;
    }
    spills_[at] = {};
    free_spills_.push_back(at);
  } else if (lanes.size() > kInline) {
    if (free_spills_.empty()) {
      free_spills_.push_back(static_cast<uint32_t>(spills_.size()));
      spills_.emplace_back();
    }
    const uint32_t at = free_spills_.back();
    free_spills_.pop_back();
    spills_[at].assign(lanes.begin(), lanes.end());
    spill_bytes_ += spills_[at].capacity() * sizeof(LaneId);
    holders = kSpilled | at;
    return;
  }
  holders = 0;
  for (size_t i = lanes.size(); i-- > 0;) holders = holders << 16 | (lanes[i] + 1U);
}

// Mostly there is room in the word, and nothing is allocated.
void BlockIndex::add_holder(uint64_t& holders, LaneId lane) {
  if (!spilled(holders) && holders >> 48 == 0) {
    int shift = 0;
    for (; shift < 48; shift += 16) {
      const uint64_t other = (holders >> shift) & 0xffff;
      if (other == lane + 1U) return;
      if (other == 0 || other > lane + 1U) break;
    }
    const uint64_t below = (uint64_t{1} << shift) - 1;
    holders = (holders & below) | uint64_t{lane + 1U} << shift | (holders & ~below) << 16;
    return;
  }
  std::vector<LaneId> lanes;
  each_lane(holders, [&](LaneId other) { lanes.push_back(other); });
  const auto at = std::ranges::lower_bound(lanes, lane);
  if (at != lanes.end() && *at == lane) return;
  lanes.insert(at, lane);
  set_holders(holders, lanes);
}

void BlockIndex::drop_holder(BlockKey key, LaneId lane) {
  Blocks::Slot* const slot = blocks_.find(key);
  if (slot == nullptr) return;
  if (slot->second == lane + 1U) {
    blocks_.erase(*slot);
    return;
  }
  if (!spilled(slot->second)) {
    for (int shift = 0; shift < 64; shift += 16) {
      if (((slot->second >> shift) & 0xffff) != lane + 1U) continue;
      const uint64_t below = (uint64_t{1} << shift) - 1;
      const uint64_t above = shift == 48 ? 0 : slot->second >> (shift + 16) << shift;
      slot->second = (slot->second & below) | above;
      break;
    }
    if (slot->second == 0) blocks_.erase(*slot);
    return;
  }
  std::vector<LaneId> lanes;
  each_lane(slot->second, [&](LaneId other) {
    if (other != lane) lanes.push_back(other);
  });
  set_holders(slot->second, lanes);
  if (lanes.empty()) blocks_.erase(*slot);
}

// --- entries

BlockIndex::Inserted BlockIndex::insert(LaneId lane, uint64_t name, BlockKey key) {
  name = named(name);
  Names& names = lanes_[lane]->names;
  if (Names::Slot* const known = names.find(name); known != nullptr) {
    if (known->second >> 8 != key) return Inserted::kOtherKey;
    if ((known->second & kCountMask) < kCountMask) ++known->second;
    if (Blocks::Slot* const slot = blocks_.find(key))
      slot->first = (slot->first & ~kAgeMask) | age_;
    return Inserted::kAgain;
  }
  const size_t room =
      max_entries_ - std::min(max_entries_ / 2, lane_count_ * kLaneBytes / kEntryBytes);
  while (entries_ >= room) evict();
  names.insert(name).second = key << 8 | 1;
  ++entries_;
  if (++inserts_ % std::max<uint64_t>(max_entries_ / kAgesPerFill, 1) == 0) ++age_;
  Blocks::Slot* slot = blocks_.find(key);
  if (slot == nullptr) slot = &blocks_.insert(key);
  slot->first = (slot->first & ~kAgeMask) | age_;
  add_holder(slot->second, lane);
  return Inserted::kNew;
}

bool BlockIndex::remove(LaneId lane, uint64_t name) {
  Names& names = lanes_[lane]->names;
  Names::Slot* const slot = names.find(named(name));
  if (slot == nullptr) return false;
  if ((slot->second & kCountMask) > 1) {
    --slot->second;
    return true;
  }
  const BlockKey key = slot->second >> 8;
  names.erase(*slot);
  --entries_;
  drop_holder(key, lane);
  return true;
}

std::optional<BlockKey> BlockIndex::find(LaneId lane, uint64_t name) const {
  const Names::Slot* const slot = lanes_[lane]->names.find(named(name));
  if (slot == nullptr) return std::nullopt;
  return slot->second >> 8;
}

void BlockIndex::prefetch(LaneId lane, std::span<const BlockKey> keys) const {
  const Names& names = lanes_[lane]->names;
  for (const BlockKey key : keys) {
    names.prefetch(named(key));
    blocks_.prefetch(key);
  }
}

void BlockIndex::touch(std::span<const BlockKey> keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + 8 < keys.size()) blocks_.prefetch(keys[i + 8]);
    if (Blocks::Slot* const slot = blocks_.find(keys[i]))
      slot->first = (slot->first & ~kAgeMask) | age_;
  }
}

// The hand goes through all lanes' entries; of the few that it looks at the oldest goes.
void BlockIndex::evict() {
  uint64_t oldest_name = 0;
  size_t oldest_lane = 0;
  int oldest = -1;
  for (size_t looks = 0; looks < kLooks;) {
    if (hand_lane_ >= lanes_.size()) hand_lane_ = 0;
    const size_t lane = hand_lane_;
    const uint64_t before = hand_place_;
    const Names::Slot* const slot =
        lanes_[lane] == nullptr ? nullptr : lanes_[lane]->names.sweep(hand_place_);
    if (slot == nullptr || hand_place_ < before) {  // through with this lane
      ++hand_lane_;
      hand_place_ = 0;
    }
    if (slot == nullptr) continue;
    ++looks;
    const Blocks::Slot* const block =
        lanes_[lane]->retired ? nullptr : blocks_.find(slot->second >> 8);
    const int age = block == nullptr ? 256 : static_cast<uint8_t>(age_ - (block->first & kAgeMask));
    if (age <= oldest) continue;
    oldest = age;
    oldest_name = slot->first;
    oldest_lane = lane;
  }
  const auto lane = static_cast<LaneId>(oldest_lane);
  lanes_[lane]->names.find(oldest_name)->second &= ~kCountMask;
  (void)remove(lane, oldest_name);
  ++evictions_;
}

// --- matching

uint64_t BlockIndex::holders_of(BlockKey key) const {
  const Blocks::Slot* const slot = blocks_.find(key);
  return slot == nullptr ? 0 : slot->second;
}

// Where what is known at both ends is the same, it is taken to be the same between.
void BlockIndex::bisect(std::span<const BlockKey> chain, size_t low, uint64_t at_low, size_t high,
                        uint64_t at_high, std::vector<Segment>& out) const {
  if (high - low <= 1 || same_lanes(at_low, at_high)) {
    if (!same_lanes(at_low, at_high)) out.push_back({low + 1, at_low});
    return;
  }
  const size_t middle = low + (high - low) / 2;
  const uint64_t at_middle = holders_of(chain[middle]);
  bisect(chain, low, at_low, middle, at_middle, out);
  bisect(chain, middle, at_middle, high, at_high, out);
}

std::vector<BlockIndex::Held> BlockIndex::add_up(std::span<const Segment> segments) const {
  struct Sum {
    Held held;
    float weight = 0;
    bool going = true;
  };
  std::vector<Sum> sums;
  size_t begin = 0;
  for (const Segment& segment : segments) {
    const auto length = static_cast<int32_t>(segment.end - begin);
    for (Sum& sum : sums) sum.weight = 0;
    each_lane(segment.holders, [&](LaneId id) {
      const Lane& lane = *lanes_[id];
      if (lane.retired) return;
      auto sum =
          std::ranges::find_if(sums, [&](const Sum& s) { return s.held.group == lane.group; });
      if (sum == sums.end()) {
        sums.push_back({.held = {.group = lane.group}, .going = begin == 0});
        sum = sums.end() - 1;
      }
      sum->weight = std::max(sum->weight, lane.weight);
    });
    bool any = false;
    for (Sum& sum : sums) {
      sum.going = sum.going && sum.weight > 0;
      if (!sum.going) continue;
      any = true;
      sum.held.blocks += length;
      sum.held.credit += static_cast<float>(length) * sum.weight;
    }
    if (!any) break;
    begin = segment.end;
  }
  std::vector<Held> out;
  for (const Sum& sum : sums) {
    if (sum.held.blocks > 0) out.push_back(sum.held);
  }
  return out;
}

std::vector<BlockIndex::Held> BlockIndex::match(std::span<const BlockKey> chain) const {
  if (chain.size() <= kShortChain) return match_exactly(chain);
  const uint64_t first = holders_of(chain.front());
  if (first == 0) return {};
  const uint64_t last = holders_of(chain.back());
  std::vector<Segment> segments;
  bisect(chain, 0, first, chain.size() - 1, last, segments);
  segments.push_back({chain.size(), last});
  return add_up(segments);
}

std::vector<BlockIndex::Held> BlockIndex::match_exactly(std::span<const BlockKey> chain) const {
  constexpr size_t kAhead = 16;
  std::vector<Segment> segments;
  for (size_t i = 0; i < std::min(kAhead, chain.size()); ++i) blocks_.prefetch(chain[i]);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i + kAhead < chain.size()) blocks_.prefetch(chain[i + kAhead]);
    const uint64_t holders = holders_of(chain[i]);
    if (holders == 0) break;
    if (!segments.empty() && same_lanes(segments.back().holders, holders)) {
      segments.back().end = i + 1;
    } else {
      segments.push_back({i + 1, holders});
    }
  }
  return add_up(segments);
}

}  // namespace tandem::router
