// ExpectedOutput: how many tokens a request will generate, learned from those before it with the
// same API key and model, else with the same model. A decayed mean: about the last kMemory requests
// count, so a client that changes its ways is followed.
//
// Bounded: at most max_bytes / kEntryBytes sources, the least recently seen goes first. One owner;
// not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

namespace tandem::router {

class ExpectedOutput {
 public:
  static constexpr size_t kEntryBytes = 160;  // list node, hash entry, their allocations
  static constexpr int32_t kUsual = 128;      // before anything was seen
  explicit ExpectedOutput(size_t max_bytes = 1UL << 20);

  // Digests of the client's key (0: none) and of the model's name.
  void observe(uint64_t key, uint64_t model, int64_t tokens);
  // `limit`: the client's max_tokens; 0: none. At least 1.
  int32_t expect(uint64_t key, uint64_t model, int64_t limit) const;

  size_t bytes() const { return entries_.size() * kEntryBytes; }

 private:
  static constexpr double kMemory = 32;
  static constexpr double kEnough = 4;  // requests before a key's own mean is believed
  struct Entry {
    uint64_t id = 0;
    double mean = 0;
    double weight = 0;
  };
  void add(uint64_t id, double tokens);
  const Entry* find(uint64_t id) const;

  size_t max_entries_;
  std::list<Entry> order_;  // the least recently seen first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> entries_;
};

}  // namespace tandem::router
