// KnownBlocks: what the simulated router believes of the workers' caches: what events told it, and
// what it sent there and is being computed (speculative). At most 64 workers.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::sim {

class KnownBlocks {
 public:
  static constexpr size_t kMostWorkers = 64;

  void stored(uint64_t block, uint32_t worker) { entries_[block].held |= bit(worker); }
  void removed(uint64_t block, uint32_t worker) { take(block, worker, &Entry::held); }
  void expect(std::span<const uint64_t> chain, uint32_t worker) {
    for (const uint64_t block : chain) entries_[block].expected |= bit(worker);
  }
  void expect_no_more(std::span<const uint64_t> chain, uint32_t worker) {
    for (const uint64_t block : chain) take(block, worker, &Entry::expected);
  }
  // Leading blocks by worker.
  void match(std::span<const uint64_t> chain, std::vector<int32_t>& held) const {
    uint64_t left = held.size() >= kMostWorkers ? ~uint64_t{0} : bit(held.size()) - 1;
    for (size_t i = 0; i <= chain.size() && left != 0; ++i) {
      const auto found = i < chain.size() ? entries_.find(chain[i]) : entries_.end();
      const uint64_t here =
          found == entries_.end() ? 0 : found->second.held | found->second.expected;
      for (uint64_t gone = left & ~here; gone != 0; gone &= gone - 1)
        held[static_cast<size_t>(__builtin_ctzll(gone))] = static_cast<int32_t>(i);
      left &= here;
    }
  }

 private:
  struct Entry {
    uint64_t held = 0;
    uint64_t expected = 0;
  };
  static uint64_t bit(uint64_t worker) { return uint64_t{1} << worker; }
  void take(uint64_t block, uint32_t worker, uint64_t Entry::* mask) {
    const auto found = entries_.find(block);
    if (found == entries_.end()) return;
    found->second.*mask &= ~bit(worker);
    if (found->second.held == 0 && found->second.expected == 0) entries_.erase(found);
  }
  std::unordered_map<uint64_t, Entry> entries_;
};

}  // namespace tandem::sim
