// The policy: which workers take a request. `auto` is one cost in seconds for every candidate, the
// smallest wins:
//
//   work      min(uncached / prefill rate, uncached beyond what can be fetched / prefill rate +
//             tokens to fetch / fetch rate)
//   prefill   queued / prefill rate + work_weight x work + pressure
//   answer    decode_weight x output tokens x step time x (1 + 2 x crowding x running) + pressure
//             (a sequence is slowed by those that run, and slows each of them as much), and for a
//             decode worker the tokens that must still reach it / fetch rate
//   pressure  pressure_seconds x k / (1 - k), k = tokens wanted / capacity
//   affinity  the affinity worker's cost is lowered by affinity_seconds + affinity_credit x
//             uncached / rate: it may hold more than this router knows
//
// A second of waiting costs this request alone; a second of computing delays all that come behind
// and evicts what they would have hit: work_weight is the price of that.
//
// The affinity worker is the first in the rendezvous order of (affinity key, worker key) whose
// requests in flight are at most `bounded_load` times the pool's mean, and whose recent tokens at
// most `bounded_recent` times: a hot session spills over, new sessions go where fewer live, and two
// routers agree without talking. A pair is made only within one group. Pure: no clock, no state.
// The same input gives the same answer; what looks random is a function of the request's `turn`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "router/policy/types.h"

namespace tandem::router {

enum class PolicyKind : uint8_t {
  kAuto,
  // For comparison:
  kRoundRobin,
  kRandom,
  kPowerOfTwo,  // of two random ones that with fewer requests in flight
  kAffinity,    // the affinity worker
  kCache,       // that which holds most of the prompt, from cache_threshold on; else few requests
};
std::string_view policy_name(PolicyKind kind);
std::vector<std::string> policy_names();
Result<PolicyKind> parse_policy(std::string_view name);  // 400 "invalid_option"

// Each constant's reason stands in docs/performance.md with the runs that chose it: the agent
// sessions, never the traces that `auto` is judged on.
struct PolicyOptions {
  PolicyKind kind = PolicyKind::kAuto;
  // An uncached tail up to this skips prefill when decode holds the prefix: a handoff costs about
  // as much.
  int32_t local_prefill_tokens = 256;
  double bounded_load = 1.25;  // the usual bound of consistent hashing with bounded loads
  double bounded_recent = 1.1;
  double affinity_seconds = 0.02;
  double affinity_credit = 0.25;
  double work_weight = 2.0;
  double decode_weight = 0.1;
  double pressure_seconds = 0.15;
  double crowding = 0.02;         // how much one more sequence lengthens a step
  double transfer_rate = 200000;  // KV tokens per second between workers, where none is measured
  double cache_threshold = 0.3;   // kCache
};

Placement choose_placement(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                           const PolicyOptions& options);

// Another answering worker, of the group of `prefill`, for a handoff whose prefill goes on there;
// kNoWorker when there is none.
WorkerId choose_decode(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                       const PolicyOptions& options, WorkerId prefill);

// FNV-1a with a final mix: stable across processes and versions.
uint64_t stable_hash(std::string_view text);

}  // namespace tandem::router
