#include "router/policy/policy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "router/policy/pool_view.h"

namespace tandem::router {

namespace {

struct PolicyRow {
  PolicyKind kind;
  std::string_view name;
};
constexpr std::array kPolicies = {PolicyRow{PolicyKind::kAuto, "auto"},
                                  PolicyRow{PolicyKind::kRoundRobin, "round_robin"},
                                  PolicyRow{PolicyKind::kRandom, "random"},
                                  PolicyRow{PolicyKind::kPowerOfTwo, "power_of_two"},
                                  PolicyRow{PolicyKind::kAffinity, "affinity"},
                                  PolicyRow{PolicyKind::kCache, "cache"}};

// The cheapest so far; equal costs go to the earlier in rendezvous order.
struct Cheapest {
  const WorkerSnapshot* worker = nullptr;
  double seconds = std::numeric_limits<double>::infinity();

  void offer(const PoolView& pool, const WorkerSnapshot& other, double cost) {
    const bool better = worker == nullptr || cost < seconds ||
                        (cost == seconds && pool.score(other) > pool.score(*worker));
    if (better) *this = {&other, cost};
  }
};

// The first in rendezvous order.
struct Preferred {
  const WorkerSnapshot* worker = nullptr;
  uint64_t score = 0;

  void offer(const WorkerSnapshot& other, uint64_t other_score) {
    if (worker == nullptr || other_score > score) *this = {&other, other_score};
  }
};

class Costs {
 public:
  explicit Costs(const PoolView& pool) : pool_(pool), options_(pool.options()) {}

  double prefill(const WorkerSnapshot& worker) const {
    // Where a hot prefix has gathered too many, its copy elsewhere is worth its price.
    const double priced = pool_.is_hot(worker) ? pool_.request().prompt_tokens / pool_.mean_rate()
                                               : work(worker, pool_.mean_rate());
    const double price = options_.work_weight + options_.evict_weight * pool_.fullness() +
                         options_.spread_weight * pool_.surplus(worker);
    return static_cast<double>(worker.queued_tokens) / rate(worker) + work(worker, rate(worker)) +
           priced * price + pressure(worker);
  }

  double answer(const WorkerSnapshot& worker) const {
    return options_.decode_weight * pool_.request().expected_output * worker.decode_step_seconds *
               (1 + 2 * options_.crowding * worker.running) +
           pressure(worker);
  }

  double alone(const WorkerSnapshot& worker) const { return prefill(worker) + answer(worker); }

  double decode(const WorkerSnapshot& worker) const {
    return answer(worker) + pool_.uncached(worker) / fetch_rate(worker);
  }

  // What being the affinity worker is worth.
  double bonus(const WorkerSnapshot& worker) const {
    const double unknown = worker.role == WorkerRole::kDecode
                               ? pool_.uncached(worker) / fetch_rate(worker)
                               : pool_.uncached(worker) / rate(worker);
    return options_.affinity_seconds + options_.affinity_credit * unknown;
  }

 private:
  static double rate(const WorkerSnapshot& worker) { return std::max(worker.prefill_rate, 1.0); }
  double fetch_rate(const WorkerSnapshot& worker) const {
    return std::max(worker.fetch_rate > 0 ? worker.fetch_rate : options_.transfer_rate, 1.0);
  }

  // Seconds to have what is not cached, by computing or fetching.
  double work(const WorkerSnapshot& worker, double tokens_per_second) const {
    const double uncached = pool_.uncached(worker);
    const double fetched = pool_.tokens_of(worker.fetch_blocks) - pool_.cached(worker);
    const double computed = uncached / tokens_per_second;
    if (fetched <= 0) return computed;
    return std::min(computed,
                    (uncached - fetched) / tokens_per_second + fetched / fetch_rate(worker));
  }

  double pressure(const WorkerSnapshot& worker) const {
    if (worker.capacity_tokens <= 0) return 0;
    const double wanted = static_cast<double>(worker.held_tokens) + pool_.request().prompt_tokens +
                          pool_.request().expected_output;
    const double share = std::min(wanted / static_cast<double>(worker.capacity_tokens), 0.99);
    return options_.pressure_seconds * share / (1 - share);
  }

  const PoolView& pool_;
  const PolicyOptions& options_;
};

Placement place_alone(const PoolView& pool, const Costs& costs) {
  std::array<Preferred, 3> preferred;
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (pool.usable(worker) && pool.within_bound(worker))
      preferred[static_cast<size_t>(worker.role)].offer(worker, pool.score(worker));
  }
  Cheapest best;
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (!pool.usable(worker)) continue;
    double cost = costs.alone(worker);
    if (preferred[static_cast<size_t>(worker.role)].worker == &worker) cost -= costs.bonus(worker);
    best.offer(pool, worker, cost);
  }
  if (best.worker == nullptr) return {};
  return placed_alone(pool, *best.worker, best.seconds);
}

// One group's best halves of a pair.
struct Group {
  Preferred preferred_decode;
  Cheapest prefill;
  Cheapest decode;
};

struct Best {
  Cheapest local;    // a decode worker that does everything
  Cheapest unified;  // all groups'
  std::vector<Group> groups;
};

Best find_best(const PoolView& pool, const Costs& costs) {
  Best best;
  best.groups.resize(pool.groups());
  Preferred prefill;
  Preferred unified;
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (!pool.usable(worker) || !pool.within_bound(worker)) continue;
    const uint64_t score = pool.score(worker);
    (worker.role == WorkerRole::kPrefill   ? prefill
     : worker.role == WorkerRole::kUnified ? unified
                                           : best.groups[worker.group].preferred_decode)
        .offer(worker, score);
  }
  for (const WorkerSnapshot& worker : pool.workers()) {
    if (!pool.usable(worker)) continue;
    Group& group = best.groups[worker.group];
    const bool preferred = &worker == prefill.worker || &worker == unified.worker ||
                           &worker == group.preferred_decode.worker;
    const double bonus = preferred ? costs.bonus(worker) : 0;
    switch (worker.role) {
      case WorkerRole::kUnified:
        best.unified.offer(pool, worker, costs.alone(worker) - bonus);
        break;
      case WorkerRole::kPrefill:
        group.prefill.offer(pool, worker, costs.prefill(worker) - bonus);
        break;
      case WorkerRole::kDecode:
        group.decode.offer(pool, worker, costs.decode(worker) - bonus);
        if (worker.prefix_blocks >= 1 &&
            pool.uncached(worker) <= pool.options().local_prefill_tokens && pool.is_cool(worker))
          best.local.offer(pool, worker, costs.alone(worker) - bonus);
        break;
    }
  }
  return best;
}

}  // namespace

Placement choose_placement(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                           const PolicyOptions& options) {
  const PoolView pool(workers, request, options);
  if (options.kind != PolicyKind::kAuto) return place_simply(pool);
  const Costs costs(pool);
  if (request.one_worker) return place_alone(pool, costs);

  const Best best = find_best(pool, costs);
  if (best.local.worker != nullptr) {
    Placement local = placed_alone(pool, *best.local.worker, best.local.seconds);
    local.local_prefill = true;
    return local;
  }
  const Group* pair = nullptr;
  double seconds = 0;
  for (const Group& group : best.groups) {
    if (group.prefill.worker == nullptr || group.decode.worker == nullptr) continue;
    const double both = group.prefill.seconds + group.decode.seconds;
    if (pair != nullptr && both >= seconds) continue;
    pair = &group;
    seconds = both;
  }
  const WorkerSnapshot* const unified = best.unified.worker;
  if (unified != nullptr && (pair == nullptr || best.unified.seconds <= seconds))
    return placed_alone(pool, *unified, best.unified.seconds);
  if (pair == nullptr) return {};
  return placed_pair(pool, *pair->prefill.worker, *pair->decode.worker, seconds);
}

Placement choose_decode(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                        const PolicyOptions& options, WorkerId prefill) {
  const auto of_pair =
      std::find_if(workers.begin(), workers.end(),
                   [&](const WorkerSnapshot& worker) { return worker.id == prefill; });
  const bool any = of_pair == workers.end();
  const uint32_t group = any ? 0 : of_pair->group;
  const PoolView pool(workers, request, options);
  if (options.kind != PolicyKind::kAuto) return choose_decode_simply(pool, group, any);
  const Costs costs(pool);
  Preferred preferred;
  const auto fits = [&](const WorkerSnapshot& worker) {
    return worker.role == WorkerRole::kDecode && pool.usable(worker) &&
           (any || worker.group == group);
  };
  for (const WorkerSnapshot& worker : workers) {
    if (fits(worker) && pool.within_bound(worker)) preferred.offer(worker, pool.score(worker));
  }
  Cheapest best;
  for (const WorkerSnapshot& worker : workers) {
    if (!fits(worker)) continue;
    const double bonus = &worker == preferred.worker ? costs.bonus(worker) : 0;
    best.offer(pool, worker, costs.decode(worker) - bonus);
  }
  return best.worker == nullptr ? Placement() : placed_alone(pool, *best.worker, best.seconds);
}

std::string_view policy_name(PolicyKind kind) {
  for (const PolicyRow& row : kPolicies) {
    if (row.kind == kind) return row.name;
  }
  return "auto";
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  names.reserve(std::size(kPolicies));
  for (const PolicyRow& row : kPolicies) names.emplace_back(row.name);
  return names;
}

Result<PolicyKind> parse_policy(std::string_view name) {
  std::string names;
  for (const PolicyRow& row : kPolicies) {
    if (row.name == name) return row.kind;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return make_error(400, "invalid_option",
                    "There is no policy \"" + std::string(name) + "\"; there are " + names + ".");
}

uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return mix64(hash);
}

}  // namespace tandem::router
