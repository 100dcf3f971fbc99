#include "router/policy/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace tandem::router {

namespace {

uint64_t mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

class Chooser {
 public:
  Chooser(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
          const PolicyOptions& options)
      : workers_(workers), request_(request), options_(options) {
    std::array<int64_t, 3> count{};
    std::array<int64_t, 3> running{};
    for (const WorkerSnapshot& worker : workers_) {
      if (!usable(worker)) continue;
      ++count[static_cast<size_t>(worker.role)];
      running[static_cast<size_t>(worker.role)] += worker.running;
    }
    for (size_t role = 0; role < bounds_.size(); ++role) {
      const double mean = static_cast<double>(running[role] + 1) /
                          static_cast<double>(std::max<int64_t>(count[role], 1));
      bounds_[role] = std::ceil(options_.bounded_load * mean);
    }
  }

  struct Choice {
    const WorkerSnapshot* worker = nullptr;
    double seconds = std::numeric_limits<double>::infinity();
  };

  // The cheapest available worker of `role`; equal costs go to the earlier in rendezvous order.
  template <typename Cost, typename Admit>
  Choice cheapest(WorkerRole role, Cost cost, Admit admit) const {
    const WorkerSnapshot* const preferred = affinity_worker(role);
    Choice best;
    for (const WorkerSnapshot& worker : workers_) {
      if (worker.role != role || !usable(worker) || !admit(worker)) continue;
      double seconds = cost(worker);
      if (&worker == preferred) seconds -= affinity_bonus(worker);
      const bool better = best.worker == nullptr || seconds < best.seconds ||
                          (seconds == best.seconds && score(worker) > score(*best.worker));
      if (better) best = {&worker, seconds};
    }
    return best;
  }

  double prefill_cost(const WorkerSnapshot& worker) const {
    return (static_cast<double>(worker.queued_tokens) + uncached(worker)) / rate(worker) +
           pressure(worker);
  }

  double decode_cost(const WorkerSnapshot& worker) const {
    return request_.expected_output * worker.decode_step_seconds *
               (1 + worker.running * options_.crowding) +
           pressure(worker);
  }

  double transfer_cost(const WorkerSnapshot& worker) const {
    return uncached(worker) / options_.transfer_rate;
  }

  int32_t cached(const WorkerSnapshot& worker) const {
    // The last token is always computed: its logits are needed.
    const int64_t held = static_cast<int64_t>(worker.prefix_blocks) * request_.block_tokens;
    return static_cast<int32_t>(
        std::clamp<int64_t>(held, 0, std::max(0, request_.prompt_tokens - 1)));
  }

  double uncached(const WorkerSnapshot& worker) const {
    return request_.prompt_tokens - cached(worker);
  }

  bool within_bound(const WorkerSnapshot& worker) const {
    return worker.running + 1 <= bounds_[static_cast<size_t>(worker.role)];
  }

 private:
  bool usable(const WorkerSnapshot& worker) const {
    return worker.available && std::find(request_.excluded.begin(), request_.excluded.end(),
                                         worker.id) == request_.excluded.end();
  }

  static double rate(const WorkerSnapshot& worker) { return std::max(worker.prefill_rate, 1.0); }

  double pressure(const WorkerSnapshot& worker) const {
    if (worker.capacity_tokens <= 0) return 0;
    const double wanted =
        static_cast<double>(worker.held_tokens + request_.prompt_tokens + request_.expected_output);
    const double share = std::min(wanted / static_cast<double>(worker.capacity_tokens), 0.99);
    return options_.pressure_seconds * share / (1 - share);
  }

  double affinity_bonus(const WorkerSnapshot& worker) const {
    return options_.affinity_seconds +
           options_.affinity_credit * request_.prompt_tokens / rate(worker);
  }

  uint64_t score(const WorkerSnapshot& worker) const {
    return mix(request_.affinity ^ mix(worker.key));
  }

  const WorkerSnapshot* affinity_worker(WorkerRole role) const {
    const WorkerSnapshot* best = nullptr;
    for (const WorkerSnapshot& worker : workers_) {
      if (worker.role != role || !usable(worker) || !within_bound(worker)) continue;
      if (best == nullptr || score(worker) > score(*best)) best = &worker;
    }
    return best;
  }

  std::span<const WorkerSnapshot> workers_;
  const PlacementRequest& request_;
  const PolicyOptions& options_;
  std::array<double, 3>
      bounds_{};  // by role: the most requests that affinity may bring a worker to
};

constexpr auto kAny = [](const WorkerSnapshot&) { return true; };

}  // namespace

Placement choose_placement(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                           const PolicyOptions& options) {
  const Chooser chooser(workers, request, options);
  const auto alone = [&](const WorkerSnapshot& worker) {
    return chooser.prefill_cost(worker) + chooser.decode_cost(worker);
  };

  if (request.one_worker) {
    Chooser::Choice best;
    for (const WorkerRole role :
         {WorkerRole::kUnified, WorkerRole::kPrefill, WorkerRole::kDecode}) {
      const auto candidate = chooser.cheapest(role, alone, kAny);
      if (candidate.worker != nullptr && candidate.seconds < best.seconds) best = candidate;
    }
    if (best.worker == nullptr) return {};
    return {kNoWorker, best.worker->id, false, chooser.cached(*best.worker), best.seconds};
  }

  const auto local =
      chooser.cheapest(WorkerRole::kDecode, alone, [&](const WorkerSnapshot& worker) {
        return worker.prefix_blocks >= 1 &&
               chooser.uncached(worker) <= options.local_prefill_tokens &&
               chooser.within_bound(worker);
      });
  if (local.worker != nullptr) {
    return {kNoWorker, local.worker->id, true, chooser.cached(*local.worker), local.seconds};
  }

  const auto unified = chooser.cheapest(WorkerRole::kUnified, alone, kAny);
  const auto prefill = chooser.cheapest(
      WorkerRole::kPrefill,
      [&](const WorkerSnapshot& worker) { return chooser.prefill_cost(worker); }, kAny);
  const auto decode = chooser.cheapest(
      WorkerRole::kDecode,
      [&](const WorkerSnapshot& worker) {
        return chooser.decode_cost(worker) + chooser.transfer_cost(worker);
      },
      kAny);
  const bool pair = prefill.worker != nullptr && decode.worker != nullptr;
  if (unified.worker != nullptr && (!pair || unified.seconds <= prefill.seconds + decode.seconds)) {
    return {kNoWorker, unified.worker->id, false, chooser.cached(*unified.worker), unified.seconds};
  }
  if (!pair) return {};
  return {prefill.worker->id, decode.worker->id, false, chooser.cached(*prefill.worker),
          prefill.seconds + decode.seconds};
}

WorkerId choose_decode(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                       const PolicyOptions& options) {
  const Chooser chooser(workers, request, options);
  const auto decode = chooser.cheapest(
      WorkerRole::kDecode,
      [&](const WorkerSnapshot& worker) {
        return chooser.decode_cost(worker) + chooser.transfer_cost(worker);
      },
      kAny);
  return decode.worker == nullptr ? kNoWorker : decode.worker->id;
}

uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return mix(hash);
}

}  // namespace tandem::router
