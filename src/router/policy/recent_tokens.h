// RecentTokens: how many different tokens a worker's prompts had lately: what its sessions weigh in
// its memory, also while they think. A session that asks often weighs as much as one that asks
// seldom, and a beginning that many share weighs once; sums of what was placed tell neither.
// Counted by a sample of the prompts' blocks, about one in kSampleTokens tokens, chosen by their
// keys: the same ones each time. About 100 ns for each sampled block. At most kMostBlocks of them
// are remembered; beyond, a block counts anew each time that it comes. One owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/clock.h"

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
  struct Seen {
    int64_t slot = 0;
    int64_t tokens = 0;
  };

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
      seen_ = {};
      last_ = swept_ = slot;
      return;
    }
    while (last_ < slot) {
      ++last_;
      of_minute_ -= tokens_[place_of(last_ - kMinute)];
      of_all_ -= std::exchange(tokens_[place_of(last_)], 0);
    }
    if (last_ - swept_ >= kSlots) sweep();
  }

  // Forgets what counts no more. Once in a slot: nothing expires within one.
  void sweep() {
    if (swept_ == last_) return;
    swept_ = last_;
    std::erase_if(seen_, [&](const auto& entry) { return entry.second.slot <= last_ - kSlots; });
  }

  void touch_one(uint64_t block, int64_t tokens) {
    const auto known = seen_.find(block);
    if (known != seen_.end()) {
      Seen& seen = known->second;
      if (seen.slot > last_ - kSlots) add(seen.slot, -seen.tokens);
      seen = {last_, tokens};
    } else {
      if (seen_.size() >= kMostBlocks) sweep();
      if (seen_.size() < kMostBlocks) seen_.emplace(block, Seen{last_, tokens});
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

  std::unordered_map<uint64_t, Seen> seen_;  // sampled blocks and when they were touched last
  std::array<int64_t, kSlots> tokens_{};     // by slot of time
  int64_t of_minute_ = 0;                    // sums of tokens_, up to last_
  int64_t of_all_ = 0;
  int64_t last_ = 0;
  int64_t swept_ = 0;
};

}  // namespace tandem::router
