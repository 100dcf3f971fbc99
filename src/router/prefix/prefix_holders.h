// PrefixHolders: which workers hold which prefixes, as far as the router knows. An expectation, not
// a truth: a wrong one costs a recomputation, never a wrong answer. Three sources, one index:
//
//  * events: what a worker's publisher told, until it tells otherwise;
//  * expectations: what was sent there, until it is computed and a moment longer: an event
//    confirms it, or an answer;
//  * beliefs: of a worker without events what it answered, until nobody asked for it for long.
//
// Thread-safe behind one lock that is held for microseconds: all is applied in small portions, and
// who looks something up goes first. Time is an argument. Bounded by bytes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "protocol/kv_events.h"
#include "router/prefix/block_index.h"
#include "router/prefix/prefix_hash.h"

namespace tandem::router {

// Events tell of a block so long after it was computed, at the latest.
inline constexpr Duration kEventTime = std::chrono::seconds(2);

struct HolderOptions {
  size_t max_bytes = size_t{256} << 20;  // of all; an eighth is for expectations
  // What a block counts for, by where its copy is.
  float device = 1.0F;
  float host = 0.75F;
  float storage = 0.25F;
  // A belief that was not renewed for so long goes, at the latest after twice as long.
  Duration believed = std::chrono::minutes(30);
};

// A prompt as one kind of block: the keys of its full blocks, each of so many tokens (or of bytes
// that are about as many).
struct PromptKeys {
  int32_t block_tokens = 16;
  std::vector<BlockKey> keys;
  bool of_bytes = false;  // no event tells of them
};

// What one data-parallel rank of a worker holds of a prompt.
struct HeldPrefix {
  uint32_t worker = 0;
  int32_t rank = 0;
  int32_t tokens = 0;
  float credit = 0;  // tokens, weighted by tier
};

class PrefixHolders {
 public:
  using Worker = uint32_t;
  PrefixHolders(HolderOptions options, uint64_t secret);

  const PrefixHasher& hasher() const { return hasher_; }

  // The worker serves this model. `events`: it tells what it holds. `ranks`: its data-parallel
  // ranks; each is looked up apart, and numbers beyond count as rank 0. A change of any forgets
  // what was known of it.
  void describe(Worker worker, const std::string& model, bool events, int32_t ranks = 1);
  void forget(Worker worker);  // its memory is gone
  bool tells(Worker worker) const;

  // From the worker's events. `stream`: numbers apart that the worker may give its publishers.
  void apply(Worker worker, uint32_t stream, const protocol::KvEventBatch& batch);
  void reset(Worker worker, uint32_t stream);  // what that stream told is void
  // The block size of its events; 0: none came yet.
  int32_t block_tokens(Worker worker) const;
  // Those of all workers of the model, ascending; also while none is there.
  std::vector<int32_t> block_sizes(const std::string& model) const;

  // A prompt that waits may wait for long, so an expectation has no time of its own: who made it
  // tells when it is over.
  using Expectation = uint64_t;  // never zero
  Expectation new_expectation() { return ++last_expectation_; }
  // That rank of the worker is about to hold these blocks, a chain from its root: they count until
  // settle(). `held`: leading ones that are known already. Of one expectation, all chains are of
  // one rank. When all of them need too much memory the oldest goes.
  void expect(Expectation expectation, Worker worker, int32_t rank, std::span<const BlockKey> chain,
              size_t held, TimePoint now);
  // The prompt was computed, and counts for `time` more; or it will not be (zero).
  void settle(Expectation expectation, Duration time, TimePoint now);
  // It holds them, and no event will tell of it.
  void believe(Worker worker, int32_t rank, std::span<const BlockKey> chain, TimePoint now);
  // In no order; who holds nothing is left out.
  std::vector<HeldPrefix> match(std::span<const PromptKeys> prompts, TimePoint now);
  // What was not confirmed or renewed goes, and the entries of what was forgotten. Takes its time:
  // where nothing waits for it, every second or so and after forget(), reset() and describe().
  void tend(TimePoint now);

  struct Counts {
    size_t blocks = 0;
    size_t entries = 0;
    size_t bytes = 0;
    size_t expected = 0;
    uint64_t stored = 0;
    uint64_t removed = 0;
    uint64_t cleared = 0;
    uint64_t unknown_parents = 0;  // blocks that follow one that is not known
    uint64_t ignored = 0;          // of other layers, media or engines; unknown or malformed events
    uint64_t evictions = 0;
  };
  Counts counts() const;

 private:
  // One cache of a worker: what one rank tells in one stream.
  struct Cache {
    uint32_t group = 0;
    std::array<std::optional<LaneId>, 3> lanes;  // by EventMedium
    std::optional<int64_t> layers;               // the group of layers that counts
  };
  // A rank: what it tells, in any stream, and what is expected of it are looked up together.
  struct Group {
    Worker worker = 0;
    int32_t rank = 0;
    std::optional<LaneId> expected = {};
    std::optional<LaneId> believed = {};
    std::optional<LaneId> believed_before = {};
    uint32_t epoch = 0;  // of `expected`
  };
  struct Known {
    std::string model;
    bool events = false;
    bool described = false;
    int32_t ranks = 1;
    std::map<int32_t, uint32_t> groups;  // by rank
    int32_t block_tokens = 0;
    std::map<std::pair<uint32_t, int32_t>, Cache> caches;  // by stream, rank
  };
  struct Expected {
    std::vector<BlockKey> keys;
    uint32_t group = 0;
    uint32_t epoch = 0;
  };
  struct Ending {
    TimePoint at;
    Expectation expectation;
  };

  Known& known(Worker worker);
  uint32_t group_of(Worker worker, int32_t rank);
  Cache& cache_of(Worker worker, uint32_t stream, int32_t rank);
  std::optional<LaneId> lane_of(Cache& cache, protocol::EventMedium medium);
  std::optional<LaneId> own_lane(std::optional<LaneId>& lane, uint32_t group);
  void drop_caches(Known& worker);
  void clear(Cache& cache);
  void retire(std::optional<LaneId>& lane);
  void turn_beliefs(TimePoint now);
  void give_way() const;
  std::optional<BlockKey> find(const Cache& cache, uint64_t name) const;
  void put(LaneId lane, uint64_t name, BlockKey key);
  void store(Worker worker, uint32_t stream, int32_t rank, const protocol::BlockStored& event);
  void remove(Worker worker, uint32_t stream, int32_t rank, const protocol::BlockRemoved& event);
  size_t expected_bytes() const;
  // Up to so many blocks of an expectation, its last ones first: returns how many. Erases it when
  // none is left.
  size_t take_back(std::map<Expectation, Expected>::iterator at, size_t most);
  void expire(TimePoint now, size_t most);

  HolderOptions options_;
  size_t max_expected_;  // bytes of what has still to be confirmed
  std::atomic<Expectation> last_expectation_ = 0;
  PrefixHasher hasher_;
  std::atomic<int> looking_ = 0;  // threads that wait to look something up
  mutable std::mutex mutex_;      // everything below
  BlockIndex index_;
  std::vector<std::unique_ptr<Known>> workers_;
  std::vector<Group> groups_;                 // by the index's numbers
  std::map<Expectation, Expected> expected_;  // the oldest first
  std::deque<Ending> endings_;                // about in order
  size_t expected_blocks_ = 0;
  std::map<std::string, std::vector<int32_t>> block_sizes_;  // by model
  TimePoint turned_{};                                       // when beliefs grew old
  Counts counts_;
};

}  // namespace tandem::router
