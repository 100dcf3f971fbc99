// What the policy sees of a worker and of a request. Plain values; ids are small and dense, given
// by the router.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tandem::router {

enum class WorkerRole : uint8_t { kPrefill, kDecode, kUnified };

using WorkerId = uint32_t;
inline constexpr WorkerId kNoWorker = std::numeric_limits<WorkerId>::max();

// One device that takes requests: a worker, or one of its data-parallel ranks, each of which has a
// queue and a cache of its own.
struct WorkerSnapshot {
  WorkerId id = kNoWorker;
  WorkerRole role = WorkerRole::kUnified;
  bool available = true;  // up, breaker closed, not draining
  // A prefill and a decode worker are paired only within one group: the router gives every
  // (connector, group name) a small number of its own, 0, 1, 2, ...
  uint32_t group = 0;
  // Stable across routers and restarts: a digest of the worker's URL and of the rank.
  uint64_t key = 0;
  double prefill_rate = 2000;         // tokens per second, measured
  double decode_step_seconds = 0.02;  // one step with one sequence
  // KV tokens per second that it can fetch from where `fetch_blocks` are, or from its pair's
  // prefill; 0: PolicyOptions::transfer_rate.
  double fetch_rate = 0;
  // Ours in flight, known at once, plus what others gave it by its last report (router/policy/
  // reported_load.h): work that was dispatched since the last poll counts, so there is no herd.
  int64_t queued_tokens = 0;    // prompt tokens given to it and not yet computed
  int64_t held_tokens = 0;      // context of the requests in flight
  int64_t capacity_tokens = 0;  // its KV memory; 0: unknown
  int32_t running = 0;          // requests in flight there
  // Different tokens of the prompts that it was given lately (router/policy/recent_tokens.h): what
  // its sessions weigh in its memory, also while they think.
  double recent_tokens = 0;    // in the last minute
  double reusable_tokens = 0;  // in the last ten: what may be asked for again
  int32_t prefix_blocks = 0;   // leading blocks of this prompt that it is expected to hold
  // Leading blocks that it could hold after a fetch from a peer or a slower tier; those beyond
  // prefix_blocks cost their bytes instead of their computation.
  int32_t fetch_blocks = 0;
  int32_t rank = 0;
};

struct PlacementRequest {
  int32_t prompt_tokens = 0;      // an estimate when the router cannot tokenize
  int32_t expected_output = 128;  // tokens (ExpectedOutput); bounded by the client's max_tokens
  int32_t block_tokens = 16;
  uint64_t affinity = 0;           // hash of the affinity key
  uint64_t turn = 0;               // counts placements: round robin and chance are functions of it
  bool one_worker = false;         // no pair: one worker of any role does everything
  std::vector<WorkerId> excluded;  // already failed this request
};

struct Placement {
  WorkerId prefill = kNoWorker;  // kNoWorker: the answering worker does everything
  WorkerId answer = kNoWorker;   // decode or unified; kNoWorker: nobody can take the request
  bool local_prefill = false;    // a decode worker that skips prefill because it holds the prefix
  int32_t expected_cached = 0;   // prompt tokens expected in the prefilling worker's cache
  double seconds = 0;            // expected cost
  int32_t prefill_rank = 0;
  int32_t answer_rank = 0;
  bool found() const { return answer != kNoWorker; }
};

}  // namespace tandem::router
