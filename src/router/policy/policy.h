// The policy: which workers take a request. `auto` is one cost in seconds for every candidate, the
// smallest wins:
//
//   work      min(uncached / prefill rate, uncached beyond what can be fetched / prefill rate +
//             tokens to fetch / fetch rate)
//   prefill   queued / prefill rate + work + pressure, and what the work costs others: work at the
//             pool's mean rate x (work_weight + evict_weight x fullness + spread_weight x
//             surplus), fullness = the pool's mean of reusable tokens / capacity, at most 1 each,
//             surplus = (recent tokens - the pool's mean of them) / (that mean + recent_slack)
//   answer    decode_weight x output tokens x step time x (1 + 2 x crowding x running) + pressure
//             (a sequence is slowed by those that run, and slows each of them as much), and for a
//             decode worker the tokens that must still reach it / fetch rate
//   pressure  pressure_seconds x k / (1 - k), k = tokens wanted / capacity
//   affinity  the affinity worker's cost is lowered by affinity_seconds + affinity_credit x
//             uncached / rate: it may hold more than this router knows
//
// A second of waiting costs this request alone; a second of computing delays all that come behind
// (work_weight is the price of that) and, where caches are full, evicts what they would have hit
// (evict_weight); spread_weight makes it higher where more sessions live. All use the mean rate: a
// noisy measurement must not make one worker look like the home of all new sessions. A worker that
// is hot (hot_factor, hot_requests) pays that price for the whole prompt, so that a prefix that
// everybody shares is copied.
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

// docs/performance.md says how the weights were chosen and what else was tried.
struct PolicyOptions {
  PolicyKind kind = PolicyKind::kAuto;
  // An uncached tail up to this skips prefill when decode holds the prefix: a handoff costs about
  // as much.
  int32_t local_prefill_tokens = 256;
  double bounded_load = 1.25;   // the usual bound of consistent hashing with bounded loads
  double bounded_recent = 1.1;  // evener than in-flight counts, which are noisy
  double recent_slack = 8192;   // a few prompts: one small session does not leave for its own work
  // With an index of what workers hold, affinity decides between equals; without one, give credit.
  double affinity_seconds = 0.02;
  double affinity_credit = 0;
  double work_weight = 4;      // best where nothing is ever evicted
  double evict_weight = 16;    // 32 is slightly better in agent sessions; see there
  double spread_weight = 3;    // sessions spread by what they weigh, without overruling a long hit
  double decode_weight = 0.1;  // a second of one answer's decoding against one of waiting for it
  double pressure_seconds = 0.15;     // half full costs as much as a short prompt
  double assumed_capacity = 1 << 20;  // KV tokens, of engines that do not tell theirs
  double crowding = 0.02;             // how much one more sequence lengthens a step
  double transfer_rate = 200000;  // KV tokens per second between workers, where none is measured
  // More requests in flight than this much of the pool's mean and so many more: a hot prefix, which
  // is copied instead of waited for.
  double hot_factor = 1.5;
  double hot_requests = 4;
  double cache_threshold = 0.3;  // kCache
};

Placement choose_placement(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                           const PolicyOptions& options);

// Another answering worker, of the group of `prefill`, for a handoff whose prefill goes on there:
// `answer` and `answer_rank` of it; not found() when there is none.
Placement choose_decode(std::span<const WorkerSnapshot> workers, const PlacementRequest& request,
                        const PolicyOptions& options, WorkerId prefill);

// FNV-1a with a final mix: stable across processes and versions.
uint64_t stable_hash(std::string_view text);

}  // namespace tandem::router
