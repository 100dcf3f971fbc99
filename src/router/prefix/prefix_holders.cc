#include "router/prefix/prefix_holders.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace tandem::router {

using protocol::EventMedium;

namespace {

constexpr size_t kPortion = 64;   // blocks that are applied under one lock
constexpr int kMostYields = 100;  // between two portions
constexpr size_t kMostSizes = 8;  // block sizes of one model
constexpr size_t kExpectationsShare = 8;
constexpr size_t kExpectationBytes = 144;  // beside its keys: a node of the map, its ending

}  // namespace

PrefixHolders::PrefixHolders(HolderOptions options, uint64_t secret)
    : options_(options),
      max_expected_(options.max_bytes / kExpectationsShare),
      hasher_(secret),
      index_(options.max_bytes - options.max_bytes / kExpectationsShare) {}

PrefixHolders::Known& PrefixHolders::known(Worker worker) {
  if (worker >= workers_.size()) workers_.resize(worker + 1);
  auto& made = workers_[worker];
  if (made == nullptr) {
    made = std::make_unique<Known>();
  }
  return *made;
}

uint32_t PrefixHolders::group_of(Worker worker, int32_t rank) {
  Known& it = known(worker);
  if (rank < 0 || rank >= it.ranks) rank = 0;
  const auto [at, fresh] = it.groups.try_emplace(rank, static_cast<uint32_t>(groups_.size()));
  if (fresh) groups_.push_back({.worker = worker, .rank = rank});
  return at->second;
}

void PrefixHolders::describe(Worker worker, const std::string& model, bool events, int32_t ranks) {
  const std::lock_guard lock(mutex_);
  Known& it = known(worker);
  if (it.described && it.model == model && it.events == events && it.ranks == ranks) return;
  if (it.described) drop_caches(it);
  it.described = true;
  it.model = model;
  it.events = events;
  it.ranks = ranks;
  it.block_tokens = 0;
}

bool PrefixHolders::tells(Worker worker) const {
  const std::lock_guard lock(mutex_);
  return worker < workers_.size() && workers_[worker] && workers_[worker]->events;
}

void PrefixHolders::retire(std::optional<LaneId>& lane) {
  if (lane) index_.retire_lane(*lane);
  lane.reset();
}

void PrefixHolders::drop_caches(Known& worker) {
  for (auto& [key, cache] : worker.caches) clear(cache);
  worker.caches.clear();
  for (const auto& [rank, number] : worker.groups) {
    Group& group = groups_[number];
    retire(group.expected);
    retire(group.believed);
    retire(group.believed_before);
    ++group.epoch;
  }
}

void PrefixHolders::clear(Cache& cache) {
  for (auto& lane : cache.lanes) retire(lane);
}

// A mutex would mostly be taken again at once by the thread that gave it back.
void PrefixHolders::give_way() const {
  for (int i = 0; i < kMostYields && looking_.load(std::memory_order_relaxed) > 0; ++i)
    std::this_thread::yield();
}

void PrefixHolders::forget(Worker worker) {
  const std::lock_guard lock(mutex_);
  drop_caches(known(worker));
}

void PrefixHolders::reset(Worker worker, uint32_t stream) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, cache] : known(worker).caches) {
    if (key.first == stream) clear(cache);
  }
}

int32_t PrefixHolders::block_tokens(Worker worker) const {
  const std::lock_guard lock(mutex_);
  return worker < workers_.size() && workers_[worker] ? workers_[worker]->block_tokens : 0;
}

std::vector<int32_t> PrefixHolders::block_sizes(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const auto found = block_sizes_.find(model);
  return found == block_sizes_.end() ? std::vector<int32_t>() : found->second;
}

// --- events

PrefixHolders::Cache& PrefixHolders::cache_of(Worker worker, uint32_t stream, int32_t rank) {
  Known& it = known(worker);
  const auto [at, fresh] = it.caches.try_emplace({stream, rank});
  if (fresh) at->second.group = group_of(worker, rank);
  return at->second;
}

std::optional<LaneId> PrefixHolders::lane_of(Cache& cache, EventMedium medium) {
  auto& lane = cache.lanes[static_cast<size_t>(medium)];
  if (!lane) {
    const float weight = medium == EventMedium::kDevice ? options_.device
                         : medium == EventMedium::kHost ? options_.host
                                                        : options_.storage;
    lane = index_.add_lane(cache.group, weight);
  }
  return lane;
}

std::optional<BlockKey> PrefixHolders::find(const Cache& cache, uint64_t name) const {
  for (const auto& lane : cache.lanes) {
    if (!lane) continue;
    if (const auto key = index_.find(*lane, name)) return key;
  }
  return std::nullopt;
}

void PrefixHolders::put(LaneId lane, uint64_t name, BlockKey key) {
  if (index_.insert(lane, name, key) == BlockIndex::Inserted::kOtherKey) {
    // Its name stands for another block now.
    while (index_.remove(lane, name)) continue;
    (void)index_.insert(lane, name, key);
  }
  ++counts_.stored;
}

void PrefixHolders::store(Worker worker, uint32_t stream, int32_t rank,
                          const protocol::BlockStored& event) {
  const size_t count = event.hashes.size();
  const bool copies = event.tokens.empty();  // of blocks that are known by name
  std::optional<BlockKey> above;
  {
    const std::lock_guard lock(mutex_);
    Known& it = known(worker);
    if (!event.main_group || !event.local || event.medium == EventMedium::kUnknown) {
      counts_.ignored += count;
      return;
    }
    Cache& cache = cache_of(worker, stream, rank);
    cache.layers = event.group;
    if (!copies && it.block_tokens != event.block_tokens) {
      it.block_tokens = event.block_tokens;
      std::vector<int32_t>& sizes = block_sizes_[it.model];
      const auto at = std::ranges::lower_bound(sizes, event.block_tokens);
      if ((at == sizes.end() || *at != event.block_tokens) && sizes.size() < kMostSizes)
        sizes.insert(at, event.block_tokens);
    }
    if (event.parent) {
      above = find(cache, event.parent->key());
    } else {
      std::string adapter(event.lora_name);
      if (adapter.empty() && event.lora_id) adapter = "#" + std::to_string(*event.lora_id);
      above = hasher_.root(it.model, adapter, event.block_tokens);
    }
    if (!above && !copies) {
      counts_.unknown_parents += count;
      return;
    }
  }
  const auto block = static_cast<size_t>(event.block_tokens);
  std::array<BlockKey, kPortion> keys{};
  for (size_t begin = 0; begin < count; begin += kPortion) {
    const size_t end = std::min(count, begin + kPortion);
    for (size_t i = begin; i < end && !copies; ++i) {
      const std::string_view extra = event.extras.empty() ? "" : std::string_view(event.extras[i]);
      above = PrefixHasher::next(*above, std::span(event.tokens).subspan(i * block, block), extra);
      keys[i - begin] = *above;
    }
    give_way();
    const std::lock_guard lock(mutex_);
    Cache& cache = cache_of(worker, stream, rank);
    const auto lane = lane_of(cache, event.medium);
    for (size_t i = begin; i < end && lane; ++i) {
      const uint64_t name = event.hashes[i].key();
      if (!copies) {
        put(*lane, name, keys[i - begin]);
      } else if (const auto key = find(cache, name)) {
        put(*lane, name, *key);
      } else {
        ++counts_.ignored;
      }
    }
  }
}

void PrefixHolders::remove(Worker worker, uint32_t stream, int32_t rank,
                           const protocol::BlockRemoved& event) {
  for (size_t begin = 0; begin < event.hashes.size(); begin += kPortion) {
    give_way();
    const std::lock_guard lock(mutex_);
    Cache& cache = cache_of(worker, stream, rank);
    const bool other_layers = event.group && cache.layers && *event.group != *cache.layers;
    if (other_layers || !event.local || event.medium == EventMedium::kUnknown) {
      ++counts_.ignored;
      return;
    }
    const auto& lane = cache.lanes[static_cast<size_t>(event.medium)];
    if (!lane) return;
    const size_t end = std::min(event.hashes.size(), begin + kPortion);
    for (size_t i = begin; i < end; ++i)
      counts_.removed += index_.remove(*lane, event.hashes[i].key()) ? 1 : 0;
  }
}

void PrefixHolders::apply(Worker worker, uint32_t stream, const protocol::KvEventBatch& batch) {
  const int32_t rank = batch.rank.value_or(0);
  {
    const std::lock_guard lock(mutex_);
    counts_.ignored += batch.unknown + batch.malformed;
  }
  for (const protocol::KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<protocol::BlockStored>(&event)) {
      store(worker, stream, rank, *stored);
    } else if (const auto* removed = std::get_if<protocol::BlockRemoved>(&event)) {
      remove(worker, stream, rank, *removed);
    } else {
      const std::lock_guard lock(mutex_);
      clear(cache_of(worker, stream, rank));
      ++counts_.cleared;
    }
  }
}

// --- what the router itself expects

std::optional<LaneId> PrefixHolders::own_lane(std::optional<LaneId>& lane, uint32_t group) {
  if (!lane) lane = index_.add_lane(group, options_.device);
  return lane;
}

void PrefixHolders::expect(Expectation expectation, Worker worker, int32_t rank,
                           std::span<const BlockKey> chain, size_t held, TimePoint now) {
  for (size_t begin = 0; begin < chain.size(); begin += kPortion) {
    give_way();
    const std::lock_guard lock(mutex_);
    const uint32_t number = group_of(worker, rank);
    Group& group = groups_[number];
    const auto lane = own_lane(group.expected, number);
    if (!lane) return;
    const auto portion = chain.subspan(begin, std::min(kPortion, chain.size() - begin));
    index_.prefetch(*lane, portion);
    index_.touch(portion);
    const auto fresh = portion.subspan(std::min(portion.size(), held - std::min(held, begin)));
    if (!fresh.empty()) {
      const size_t more = fresh.size() * sizeof(BlockKey) + kExpectationBytes;
      while (!expected_.empty() && expected_bytes() + more > max_expected_)
        take_back(expected_.begin(), kPortion);
      Expected& expected = expected_[expectation];
      if (!expected.keys.empty() && (expected.group != number || expected.epoch != group.epoch)) {
        expected_blocks_ -= expected.keys.size();  // forgotten meanwhile: its lane is gone
        expected.keys.clear();
      }
      if (expected.keys.empty()) {
        expected.keys.reserve(chain.size() - std::max(held, begin));
        expected.group = number;
        expected.epoch = group.epoch;
      }
      expected.keys.insert(expected.keys.end(), fresh.begin(), fresh.end());
      expected_blocks_ += fresh.size();
      for (const BlockKey key : fresh) (void)index_.insert(*lane, key, key);
    }
    expire(now, kPortion);
  }
}

void PrefixHolders::settle(Expectation expectation, Duration time, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (!expected_.contains(expectation)) return;
  if (time <= Duration::zero()) {
    endings_.push_front({now, expectation});
  } else {
    endings_.push_back({now + time, expectation});
  }
  expire(now, kPortion);
}

void PrefixHolders::believe(Worker worker, int32_t rank, std::span<const BlockKey> chain,
                            TimePoint now) {
  for (size_t begin = 0; begin < chain.size(); begin += kPortion) {
    give_way();
    const std::lock_guard lock(mutex_);
    if (begin == 0) turn_beliefs(now);
    const uint32_t number = group_of(worker, rank);
    const auto lane = own_lane(groups_[number].believed, number);
    if (!lane) return;
    const auto portion = chain.subspan(begin, std::min(kPortion, chain.size() - begin));
    index_.prefetch(*lane, portion);
    index_.touch(portion);
    for (const BlockKey key : portion) {
      if (!index_.find(*lane, key)) (void)index_.insert(*lane, key, key);
    }
  }
}

size_t PrefixHolders::expected_bytes() const {
  return expected_blocks_ * sizeof(BlockKey) + expected_.size() * kExpectationBytes;
}

size_t PrefixHolders::take_back(std::map<Expectation, Expected>::iterator at, size_t most) {
  Expected& expected = at->second;
  const Group& group = groups_[expected.group];
  const bool alive = group.expected && group.epoch == expected.epoch;
  const size_t count = std::min(most, expected.keys.size());
  for (size_t i = 0; i < count; ++i) {
    if (alive) (void)index_.remove(*group.expected, expected.keys.back());
    expected.keys.pop_back();
  }
  expected_blocks_ -= count;
  if (expected.keys.empty()) expected_.erase(at);
  return count;
}

void PrefixHolders::expire(TimePoint now, size_t most) {
  while (most > 0 && !endings_.empty() && endings_.front().at <= now) {
    const auto at = expected_.find(endings_.front().expectation);
    if (at == expected_.end()) {
      endings_.pop_front();
      --most;
    } else {
      most -= take_back(at, most);
    }
  }
}

// What is asked for is put into the young lane again; the old one goes.
void PrefixHolders::turn_beliefs(TimePoint now) {
  if (turned_ == TimePoint{}) turned_ = now;
  if (now - turned_ < options_.believed) return;
  turned_ = now;
  for (Group& group : groups_) {
    retire(group.believed_before);
    group.believed_before = std::exchange(group.believed, std::nullopt);
  }
}

void PrefixHolders::tend(TimePoint now) {
  bool more = true;
  while (more) {
    give_way();
    const std::lock_guard lock(mutex_);
    turn_beliefs(now);
    expire(now, kPortion);
    more = index_.sweep(kPortion) || (!endings_.empty() && endings_.front().at <= now);
  }
}

std::vector<HeldPrefix> PrefixHolders::match(std::span<const PromptKeys> prompts, TimePoint now) {
  std::vector<HeldPrefix> held;
  looking_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  looking_.fetch_sub(1, std::memory_order_relaxed);
  expire(now, kPortion);
  for (const PromptKeys& prompt : prompts) {
    if (prompt.keys.empty()) continue;
    for (const BlockIndex::Held& one : index_.match(prompt.keys)) {
      const Group& group = groups_[one.group];
      const HeldPrefix here{group.worker, group.rank, one.blocks * prompt.block_tokens,
                            one.credit * static_cast<float>(prompt.block_tokens)};
      const auto same = std::ranges::find_if(held, [&](const HeldPrefix& other) {
        return other.worker == here.worker && other.rank == here.rank;
      });
      if (same == held.end()) {
        held.push_back(here);
      } else if (here.credit > same->credit) {
        *same = here;
      }
    }
  }
  return held;
}

PrefixHolders::Counts PrefixHolders::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.blocks = index_.blocks();
  counts.entries = index_.entries();
  counts.bytes = index_.bytes() + expected_bytes();
  counts.expected = expected_blocks_;
  counts.evictions = index_.evictions();
  return counts;
}

}  // namespace tandem::router
