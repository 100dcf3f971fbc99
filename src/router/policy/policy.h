// The policy: which workers take a request. One cost in seconds for every candidate, the smallest
// wins.
//
//   prefill side: (queued + uncached tokens) / prefill rate + memory pressure
//   answer side:  output tokens x step time x (1 + running x crowding) + missing tokens / transfer
//   rate + memory pressure pressure:     pressure_seconds x k / (1 - k), k = (held + prompt) /
//   capacity affinity:     the affinity worker's cost is lowered by affinity_seconds +
//   affinity_credit x (prompt / prefill rate):
//                 it may hold more than this router knows
//
// The affinity worker is the first in the rendezvous order of (affinity key, worker key) whose load
// is at most `bounded_load` times the pool's mean: a hot session spills over, and two routers agree
// without talking. Pure: no clock, no state. The same input gives the same answer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "router/policy/types.h"

namespace tandem::router {

struct PolicyOptions {
  int32_t local_prefill_tokens =
      256;  // an uncached tail up to this skips prefill when decode holds the prefix
  double bounded_load = 1.25;
  double affinity_seconds = 0.02;
  double affinity_credit = 0.25;
  double pressure_seconds = 0.15;
  double crowding = 0.15;         // how much one more sequence slows a step
  double transfer_rate = 200000;  // tokens of KV per second between workers
};

Placement choose_placement(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                           const PolicyOptions& options);

// Another answering worker for a handoff whose prefill goes on; kNoWorker when there is none.
WorkerId choose_decode(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                       const PolicyOptions& options);

// FNV-1a with a final mix: stable across processes and versions.
uint64_t stable_hash(std::string_view text);

}  // namespace tandem::router
