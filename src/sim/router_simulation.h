// RouterSimulation: the router's own policy, load ledger and admission over modelled workers under
// virtual time, with real traffic. The same traffic for every policy makes them comparable.
// Deterministic.
//
//   for (const RouterPolicy& policy : all_router_policies())
//     RouterOutcome outcome = simulate_router(traffic, setup, policy);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/admission/admission.h"
#include "router/policy/policy.h"
#include "sim/cache_aware.h"
#include "sim/serving_worker.h"
#include "sim/traffic.h"

namespace tandem::sim {

// A policy of the router, or SGLang's cache_aware.
struct RouterPolicy {
  std::string name = "auto";
  std::optional<router::PolicyKind> kind = router::PolicyKind::kAuto;  // nothing: cache_aware
};
std::vector<RouterPolicy> all_router_policies();
Result<RouterPolicy> parse_router_policy(std::string_view name);

struct RouterSetup {
  int32_t unified = 8;
  int32_t prefill = 0;
  int32_t decode = 0;
  int32_t groups = 1;  // pairs are made within one
  EngineSpec engine;
  bool tells_capacity = true;    // else the policy takes its assumed_capacity
  router::PolicyOptions policy;  // its kind is the RouterPolicy's
  CacheAwareOptions cache_aware;
  router::AdmissionOptions admission;
  router::AdmissionCapacity capacity;  // zero: everything is let in
  int32_t sessions_at_once = 64;       // closed loop
  double transfer_rate = 200000;       // KV tokens per second between workers
  Duration transfer_latency = std::chrono::milliseconds(5);
  Duration event_delay = std::chrono::milliseconds(50);  // of a cache's events to the router
  Duration time_limit = std::chrono::hours(24);
  // Of what is chance in reality: the workers' keys (what their URLs are), and how much later than
  // its time each request comes, up to `jitter`.
  uint64_t seed = 0;
  Duration jitter{};
};

struct RouterOutcome {
  std::string policy;
  int64_t requests = 0;
  int64_t shed = 0;
  int64_t unfinished = 0;
  double seconds = 0;               // virtual
  std::vector<double> first_token;  // seconds, sorted
  std::vector<double> waits;        // in the admission queue, sorted
  StepLengths steps;                // between tokens
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t ideal_tokens = 0;  // that one infinite cache would have had
  double load_ratio = 0;   // largest over mean of the answering workers' tokens in flight over time
  double work_ratio = 0;   // largest over mean of the tokens that prefilling workers computed
  double utilization = 0;  // share of time that prefilling workers computed
  double hit_rate() const {
    return input_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(input_tokens)
                            : 0;
  }
  double share_of_ideal() const {
    return ideal_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(ideal_tokens)
                            : 1;
  }
  double mean_first_token() const;
};
// Outcomes of one policy with several seeds as one: times of all, sums of tokens, means of ratios.
RouterOutcome joined(const std::vector<RouterOutcome>& outcomes);
double quantile(const std::vector<double>& sorted, double share);

inline constexpr int64_t kMostSimulatedWorkers = 256;

// Errors: 400 "invalid_option".
Result<RouterOutcome> simulate_router(const Traffic& traffic, const RouterSetup& setup,
                                      const RouterPolicy& policy);

}  // namespace tandem::sim
