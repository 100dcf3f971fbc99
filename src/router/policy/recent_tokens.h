// RecentTokens: how many different tokens a worker's prompts had lately: what its sessions weigh in
// its memory, also while they think. A session that asks often weighs as much as one that asks
// seldom, and a beginning that many share weighs once; sums of what was placed tell neither.
// Counted by a sample of the prompts' blocks, about one in kSampleTokens tokens, chosen by their
// keys: the same ones each time. Tens of nanoseconds for each sampled block, and no call takes
// long: the table grows and is swept in small steps. At most kMostBlocks of them are remembered;
// beyond, a block counts anew each time that it comes. One owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "base/clock.h"
#include "numerics/flat_table.h"

namespace tandem::router {

class RecentTokens {
 public:
  // A prompt with these blocks (keys of PrefixHasher) is placed there, or computed.
  void touch(std::span<const uint64_t> blocks, int32_t block_tokens, TimePoint now) {
    advance(slot_of(now));
    const auto every =
        static_cast<uint32_t>(std::max(1, kSampleTokens / std::max(block_tokens, 1)));
    for (const uint64_t block : blocks) {
      // Of 32 bits, which are divided several times as fast.
      if (static_cast<uint32_t>(block) % every == 0)
        touch_one(block, static_cast<int64_t>(every) * block_tokens);
    }
  }
  // Of the last minute: longer than most pauses between turns of an agent.
  double of_minute(TimePoint now) const { return left(of_minute_, now, kMinute); }
  // Of the last ten minutes: what may well be asked for again.
  double of_ten_minutes(TimePoint now) const { return left(of_all_, now, kSlots); }

 private:
  static constexpr int32_t kSampleTokens = 512;
  static constexpr size_t kMostBlocks = size_t{1} << 17;
  static constexpr int64_t kSlotSeconds = 5;
  static constexpr int64_t kMinute = 60 / kSlotSeconds;
  static constexpr int64_t kSlots = 10 * kMinute;
  static constexpr int kSweepSteps = 16;  // before a block is added
  // Block to the slot of time in which it was touched last (the upper half) and its tokens.
  using Seen = FlatTable<0, 6>;

  static uint64_t packed(int64_t slot, int64_t tokens) {
    return static_cast<uint64_t>(slot) << 32 | static_cast<uint32_t>(tokens);
  }
  static int64_t seen_slot(const Seen::Slot& seen) {
    return static_cast<int64_t>(seen.second) >> 32;
  }
  static int64_t seen_tokens(const Seen::Slot& seen) { return static_cast<uint32_t>(seen.second); }

  static int64_t slot_of(TimePoint now) {
    return static_cast<int64_t>(to_seconds(now.time_since_epoch())) / kSlotSeconds;
  }
  // Of slots from -kSlots on.
  static size_t place_of(int64_t slot) { return static_cast<size_t>((slot + kSlots) % kSlots); }

  void advance(int64_t slot) {
    if (slot <= last_) return;
    if (slot - last_ >= kSlots) {
      tokens_.fill(0);
      of_minute_ = of_all_ = 0;
      last_ = slot;
    }
    while (last_ < slot) {
      ++last_;
      of_minute_ -= tokens_[place_of(last_ - kMinute)];
      of_all_ -= std::exchange(tokens_[place_of(last_)], 0);
    }
    to_sweep_ = seen_.size();
  }

  // Forgets what counts no more among the next few blocks. At most once round in a slot, since
  // nothing expires within one; what a resize moves may wait for the next round.
  void sweep() {
    for (int step = 0; step < kSweepSteps && to_sweep_ > 0; ++step, --to_sweep_) {
      Seen::Slot* const seen = seen_.sweep(hand_);
      if (seen == nullptr) return;
      if (seen_slot(*seen) > last_ - kSlots) continue;
      --hand_;  // another one may have moved there
      seen_.erase(*seen);
    }
  }

  void touch_one(uint64_t block, int64_t tokens) {
    if (block == 0) block = 1;
    if (Seen::Slot* const known = seen_.find(block)) {
      if (seen_slot(*known) > last_ - kSlots) add(seen_slot(*known), -seen_tokens(*known));
      known->second = packed(last_, tokens);
    } else {
      sweep();
      if (seen_.size() < kMostBlocks) seen_.insert(block).second = packed(last_, tokens);
    }
    add(last_, tokens);
  }

  void add(int64_t slot, int64_t tokens) {
    tokens_[place_of(slot)] += tokens;
    of_all_ += tokens;
    if (slot > last_ - kMinute) of_minute_ += tokens;
  }

  // Of `total`, of so many slots up to last_, what has not expired since.
  double left(int64_t total, TimePoint now, int64_t slots) const {
    const int64_t end = slot_of(now);
    if (end - last_ >= slots) return 0;
    for (int64_t slot = last_ - slots + 1; slot <= end - slots; ++slot)
      total -= tokens_[place_of(slot)];
    return static_cast<double>(total);
  }

  Seen seen_;                             // sampled blocks
  uint64_t hand_ = 0;                     // where in it the sweep is
  size_t to_sweep_ = 0;                   // blocks that it has not come to in this slot
  std::array<int64_t, kSlots> tokens_{};  // by slot of time
  int64_t of_minute_ = 0;                 // sums of tokens_, up to last_
  int64_t of_all_ = 0;
  int64_t last_ = 0;
};

}  // namespace tandem::router
