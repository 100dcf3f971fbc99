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

struct WorkerSnapshot {
  WorkerId id = kNoWorker;
  WorkerRole role = WorkerRole::kUnified;
  uint64_t key = 0;            // stable across routers and restarts: a digest of the worker's URL
  bool available = true;       // up, breaker closed
  double prefill_rate = 2000;  // tokens per second, measured
  double decode_step_seconds = 0.02;  // one step with one sequence
  int64_t queued_tokens = 0;          // prompt tokens given to it and not yet computed
  int32_t running = 0;                // requests in flight there
  int64_t held_tokens = 0;            // context of the requests in flight
  int64_t capacity_tokens = 0;        // its KV memory; 0: unknown
  int32_t prefix_blocks = 0;          // leading blocks of this prompt that it is expected to hold
};

struct PlacementRequest {
  int32_t prompt_tokens = 0;
  int32_t expected_output = 128;  // tokens; bounded by the client's max_tokens
  int32_t block_tokens = 16;
  uint64_t affinity = 0;           // hash of the affinity key
  bool one_worker = false;         // no pair: one worker of any role does everything
  std::vector<WorkerId> excluded;  // already failed this request
};

struct Placement {
  WorkerId prefill = kNoWorker;  // kNoWorker: the answering worker does everything
  WorkerId answer = kNoWorker;   // decode or unified; kNoWorker: nobody can take the request
  bool local_prefill = false;    // a decode worker that skips prefill because it holds the prefix
  int32_t expected_cached = 0;   // prompt tokens expected in the prefilling worker's cache
  double seconds = 0;            // expected cost
  bool found() const { return answer != kNoWorker; }
};

}  // namespace tandem::router
