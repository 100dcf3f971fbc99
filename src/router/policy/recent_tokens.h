// RecentTokens: how many different tokens a worker's prompts had lately: what its sessions weigh in
// its memory, also while they think. A session that asks often weighs as much as one that asks
// seldom, and a beginning that many share weighs once; sums of what was placed tell neither.
// Counted by a sample of the prompts' blocks, about one in kSampleTokens tokens, chosen by their
// keys: the same ones each time. About 100 ns for each sampled block. At most kMostBlocks of them,
// beyond which nothing more is counted. One owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "base/clock.h"

namespace tandem::router {

class RecentTokens {
 public:
  // A prompt with these blocks (keys of PrefixHasher) is placed there, or computed.
  void touch(std::span<const uint64_t> blocks, int32_t block_tokens, TimePoint now) {
    const int64_t slot = slot_of(now);
    advance(slot);
    const auto every =
        static_cast<uint64_t>(std::max(1, kSampleTokens / std::max(block_tokens, 1)));
    for (const uint64_t block : blocks) {
      if (block % every == 0) touch_one(block, static_cast<int64_t>(every) * block_tokens, slot);
    }
  }
  // Of the last minute: longer than most pauses between turns of an agent.
  double of_minute(TimePoint now) const { return sum(now, kMinute); }
  // Of the last ten minutes: what may well be asked for again.
  double of_ten_minutes(TimePoint now) const { return sum(now, kSlots); }

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
  static size_t place_of(int64_t slot) { return static_cast<size_t>(slot % kSlots); }

  void advance(int64_t slot) {
    if (slot - last_ >= kSlots) {
      tokens_.fill(0);
      seen_.clear();
    }
    for (int64_t next = std::max(last_ + 1, slot - kSlots + 1); next <= slot; ++next)
      tokens_[place_of(next)] = 0;
    if (slot > last_ && last_ - swept_ >= kSlots) {
      std::erase_if(seen_, [&](const auto& entry) { return entry.second.slot <= slot - kSlots; });
      swept_ = slot;
    }
    last_ = std::max(last_, slot);
  }

  void touch_one(uint64_t block, int64_t tokens, int64_t slot) {
    if (seen_.size() >= kMostBlocks && !seen_.contains(block)) return;
    Seen& seen = seen_[block];
    if (seen.tokens > 0 && seen.slot > last_ - kSlots) tokens_[place_of(seen.slot)] -= seen.tokens;
    seen = {slot, tokens};
    tokens_[place_of(slot)] += tokens;
  }

  double sum(TimePoint now, int64_t slots) const {
    const int64_t end = slot_of(now);
    int64_t tokens = 0;
    for (int64_t slot = std::max<int64_t>(end - slots + 1, last_ - kSlots + 1); slot <= last_;
         ++slot)
      tokens += slot >= 0 ? tokens_[place_of(slot)] : 0;
    return static_cast<double>(tokens);
  }

  std::unordered_map<uint64_t, Seen> seen_;  // sampled blocks and when they were touched last
  std::array<int64_t, kSlots> tokens_{};     // by slot of time
  int64_t last_ = 0;
  int64_t swept_ = 0;
};

}  // namespace tandem::router
