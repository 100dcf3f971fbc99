#include <limits>
#include <vector>

#include "router/policy/pool_view.h"

namespace tandem::router {

namespace {

using Candidates = std::vector<const WorkerSnapshot*>;

const WorkerSnapshot* fewest_running(const PoolView& pool, const Candidates& from) {
  const WorkerSnapshot* best = nullptr;
  for (const WorkerSnapshot* const worker : from) {
    if (best == nullptr || worker->running < best->running ||
        (worker->running == best->running && pool.score(*worker) > pool.score(*best)))
      best = worker;
  }
  return best;
}

const WorkerSnapshot* affinity_worker(const PoolView& pool, const Candidates& from) {
  const WorkerSnapshot* best = nullptr;
  for (const WorkerSnapshot* const worker : from) {
    if (!pool.within_bound(*worker)) continue;
    if (best == nullptr || pool.score(*worker) > pool.score(*best)) best = worker;
  }
  return best != nullptr ? best : fewest_running(pool, from);
}

const WorkerSnapshot* longest_prefix(const PoolView& pool, const Candidates& from) {
  int32_t most = 0;
  for (const WorkerSnapshot* const worker : from) most = std::max(most, pool.cached(*worker));
  if (most < pool.options().cache_threshold * pool.request().prompt_tokens)
    return fewest_running(pool, from);
  Candidates holders;
  for (const WorkerSnapshot* const worker : from) {
    if (pool.cached(*worker) == most) holders.push_back(worker);
  }
  return fewest_running(pool, holders);
}

// `stage` tells the two choices of one pair apart.
const WorkerSnapshot* select(const PoolView& pool, const Candidates& from, uint64_t stage) {
  if (from.empty()) return nullptr;
  const uint64_t turn = pool.request().turn;
  const uint64_t chance = mix64(2 * turn + stage + 1);
  switch (pool.options().kind) {
    case PolicyKind::kRoundRobin:
      return from[turn % from.size()];
    case PolicyKind::kRandom:
      return from[chance % from.size()];
    case PolicyKind::kPowerOfTwo: {
      if (from.size() == 1) return from[0];
      const size_t one = chance % from.size();
      const size_t two = (one + 1 + mix64(chance) % (from.size() - 1)) % from.size();
      return from[two]->running < from[one]->running ? from[two] : from[one];
    }
    case PolicyKind::kCache:
      return longest_prefix(pool, from);
    default:
      return affinity_worker(pool, from);
  }
}

Candidates decode_workers(const PoolView& pool, uint32_t group, bool any_group) {
  Candidates found;
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (worker.role == WorkerRole::kDecode && pool.usable(worker) &&
        (any_group || worker.group == group))
      found.push_back(&worker);
  }
  return found;
}

}  // namespace

Placement place_simply(const PoolView& pool) {
  const bool alone = pool.request().one_worker;
  std::vector<bool> decodes(pool.groups(), false);
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (worker.role == WorkerRole::kDecode && pool.usable(worker)) decodes[worker.group] = true;
  }
  Candidates from;
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (!pool.usable(worker)) continue;
    const bool pairs = worker.role == WorkerRole::kPrefill && decodes[worker.group];
    if (alone || worker.role == WorkerRole::kUnified || pairs) from.push_back(&worker);
  }
  const WorkerSnapshot* const first = select(pool, from, 0);
  if (first == nullptr) return {};
  if (alone || first->role != WorkerRole::kPrefill) return placed_alone(pool, *first, 0);
  const WorkerSnapshot* const decode =
      select(pool, decode_workers(pool, first->group, /*any_group=*/false), 1);
  return placed_pair(pool, *first, *decode, 0);
}

Placement choose_decode_simply(const PoolView& pool, uint32_t group, bool any_group) {
  const WorkerSnapshot* const decode = select(pool, decode_workers(pool, group, any_group), 1);
  return decode == nullptr ? Placement() : placed_alone(pool, *decode, 0);
}

}  // namespace tandem::router
