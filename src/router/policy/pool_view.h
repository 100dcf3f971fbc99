// PoolView: what every policy asks of the workers of one request: who may be used, what is cached,
// whose affinity it is. Private to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "numerics/mix.h"
#include "router/policy/policy.h"

namespace tandem::router {

class PoolView {
 public:
  PoolView(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
           const PolicyOptions& options)
      : workers_(workers), request_(request), options_(options) {
    std::array<int64_t, 3> count{};
    std::array<int64_t, 3> running{};
    for (const WorkerSnapshot& worker : workers_) {
      if (!usable(worker)) continue;
      const auto role = static_cast<size_t>(worker.role);
      ++count[role];
      running[role] += worker.running;
      most_recent_[role] += worker.recent_tokens;
      mean_rate_ += std::max(worker.prefill_rate, 1.0);
      const double capacity = worker.capacity_tokens > 0
                                  ? static_cast<double>(worker.capacity_tokens)
                                  : std::max(options_.assumed_capacity, 1.0);
      fullness_ += std::min(worker.reusable_tokens / capacity, 1.0);
      groups_ = std::max<size_t>(groups_, worker.group + 1);
    }
    for (size_t role = 0; role < count.size(); ++role) {
      const auto workers_of_role = static_cast<double>(std::max<int64_t>(count[role], 1));
      const double mean = static_cast<double>(running[role] + 1) / workers_of_role;
      most_running_[role] = std::ceil(options_.bounded_load * mean);
      hot_running_[role] = options_.hot_factor * mean + options_.hot_requests;
      mean_recent_[role] = most_recent_[role] / workers_of_role;
      most_recent_[role] = mean_recent_[role] * options_.bounded_recent + options_.recent_slack;
    }
    const auto usable_workers =
        static_cast<double>(std::max<int64_t>(count[0] + count[1] + count[2], 1));
    mean_rate_ /= usable_workers;
    fullness_ /= usable_workers;
  }

  std::span<const WorkerSnapshot> workers() const { return workers_; }
  const PlacementRequest& request() const { return request_; }
  const PolicyOptions& options() const { return options_; }
  size_t groups() const { return groups_; }  // numbers of groups are below this

  bool usable(const WorkerSnapshot& worker) const {
    return worker.available && (request_.excluded.empty() ||
                                std::find(request_.excluded.begin(), request_.excluded.end(),
                                          worker.id) == request_.excluded.end());
  }

  int32_t cached(const WorkerSnapshot& worker) const { return tokens_of(worker.prefix_blocks); }
  double uncached(const WorkerSnapshot& worker) const {
    return request_.prompt_tokens - cached(worker);
  }
  // The last token is always computed: its logits are needed.
  int32_t tokens_of(int32_t blocks) const {
    const int64_t held = static_cast<int64_t>(blocks) * request_.block_tokens;
    return static_cast<int32_t>(
        std::clamp<int64_t>(held, 0, std::max(0, request_.prompt_tokens - 1)));
  }

  uint64_t score(const WorkerSnapshot& worker) const {
    return mix64(request_.affinity ^ mix64(worker.key));
  }
  double mean_rate() const { return std::max(mean_rate_, 1.0); }
  // How much of the workers' memory holds what may be asked for again: 0 to 1.
  double fullness() const { return fullness_; }
  // How much more than the mean of its role its sessions weigh: -1 (nothing) and up.
  double surplus(const WorkerSnapshot& worker) const {
    const double mean = mean_recent_[static_cast<size_t>(worker.role)];
    return std::min((worker.recent_tokens - mean) / (mean + options_.recent_slack), 10.0);
  }
  // Affinity may bring more to it.
  bool within_bound(const WorkerSnapshot& worker) const {
    const auto role = static_cast<size_t>(worker.role);
    return worker.running + 1 <= most_running_[role] && worker.recent_tokens <= most_recent_[role];
  }
  // Far more gathered there than elsewhere.
  bool is_hot(const WorkerSnapshot& worker) const {
    return worker.running > hot_running_[static_cast<size_t>(worker.role)];
  }
  // Its work is not far above the others' at present.
  bool is_cool(const WorkerSnapshot& worker) const {
    return worker.running + 1 <= most_running_[static_cast<size_t>(worker.role)];
  }

 private:
  std::span<const WorkerSnapshot> workers_;
  const PlacementRequest& request_;
  const PolicyOptions& options_;
  size_t groups_ = 0;
  std::array<double, 3> most_running_{};  // by role
  std::array<double, 3> hot_running_{};
  std::array<double, 3> mean_recent_{};
  std::array<double, 3> most_recent_{};
  double mean_rate_ = 0;
  double fullness_ = 0;
};

inline Placement placed_alone(const PoolView& pool, const WorkerSnapshot& worker, double seconds) {
  return {.answer = worker.id,
          .expected_cached = pool.cached(worker),
          .seconds = seconds,
          .answer_rank = worker.rank};
}
inline Placement placed_pair(const PoolView& pool, const WorkerSnapshot& prefill,
                             const WorkerSnapshot& answer, double seconds) {
  return {.prefill = prefill.id,
          .answer = answer.id,
          .expected_cached = pool.cached(prefill),
          .seconds = seconds,
          .prefill_rank = prefill.rank,
          .answer_rank = answer.rank};
}

// The policies that compare no costs (every kind but kAuto).
Placement place_simply(const PoolView& pool);
Placement choose_decode_simply(const PoolView& pool, uint32_t group, bool any_group);

}  // namespace tandem::router
