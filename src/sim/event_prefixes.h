// EventPrefixes: the router's own knowledge of caches (router/prefix) over simulated ones: what
// their events told, in the form in which engines tell it, and what was sent there and is being
// computed. A simulated block's id stands for its tokens and all before them, so two numbers that
// spell the id are its "tokens".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "router/prefix/prefix_holders.h"
#include "sim/block_cache.h"

namespace tandem::sim {

class EventPrefixes {
 public:
  explicit EventPrefixes(size_t workers);

  // What a prompt is looked up by.
  router::PromptKeys keys_of(std::span<const uint64_t> chain) const;
  void told(uint32_t worker, std::span<const BlockCache::Change> changes, TimePoint now);
  // The worker was given the prompt, of which it holds `held` blocks. Ends with settle().
  router::PrefixHolders::Expectation expect(uint32_t worker, const router::PromptKeys& keys,
                                            int32_t held, TimePoint now);
  void settle(router::PrefixHolders::Expectation expectation, Duration time, TimePoint now);
  // Leading blocks by worker.
  void match(const router::PromptKeys& keys, std::vector<int32_t>& held, TimePoint now);

 private:
  router::PrefixHolders holders_;
};

}  // namespace tandem::sim
