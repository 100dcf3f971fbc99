// CacheAware: a model of the policy of this name in SGLang's router, for comparison (its defaults
// and rules as published; nothing here is its code). Unless the loads are out of balance, a request
// goes where the longest part of its text was sent before, if that is more than a threshold of it,
// else to the worker to which the least text was sent. Out of balance means that the largest load
// exceeds the smallest by `balance_abs` requests and by a factor `balance_rel`: then the least
// loaded worker is taken. The router keeps one tree of texts for all workers, and trims it by age
// every `evict_every`; it never learns what engines evict.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"

namespace tandem::sim {

struct CacheAwareOptions {
  double cache_threshold = 0.3;
  int32_t balance_abs = 64;
  double balance_rel = 1.5;
  Duration evict_every = std::chrono::seconds(120);
  int64_t most_characters = int64_t{1} << 26;  // per worker
  double characters_per_token = 4;
};

class CacheAware {
 public:
  CacheAware(const CacheAwareOptions& options, size_t workers, int32_t block_tokens)
      : options_(options), block_tokens_(block_tokens), blocks_(workers, 0) {}

  // `running`: requests in flight by worker. The index of the worker; its tree is updated.
  size_t choose(std::span<const uint64_t> chain, int32_t tokens, std::span<const int32_t> running,
                TimePoint now);

 private:
  // By worker, when a text of this node was last sent there; zero: never.
  using Node = std::vector<int64_t>;
  void evict(TimePoint now);

  CacheAwareOptions options_;
  int32_t block_tokens_;
  std::unordered_map<uint64_t, Node> nodes_;
  std::vector<int64_t> blocks_;  // of each worker's tree
  TimePoint evicted_{};
};

}  // namespace tandem::sim
