// Runs of the simulated KV plane, by the thousand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/plan.h"
#include "sim/world.h"

namespace tandem::sim {

Outcome run_plan(const Plan& plan, bool tracing = false);

struct Campaign {
  uint64_t runs = 0;
  uint64_t events = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t abandoned = 0;
  uint64_t handoffs = 0;
  uint64_t fenced = 0;
  std::vector<uint64_t> bad_seeds;  // at most the first ten
  std::string violation;            // of the first
};

// Seeds first_seed .. first_seed + runs - 1; stops after `stop_after` violations. `progress` hears
// of every run.
Campaign run_campaign(uint64_t runs, uint64_t first_seed, Break broken, size_t stop_after = 1,
                      const std::function<void(const Campaign&)>& progress = {});

}  // namespace tandem::sim
