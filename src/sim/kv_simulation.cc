#include "sim/kv_simulation.h"

namespace tandem::sim {

Outcome run_plan(const Plan& plan, bool tracing) { return World(plan, tracing).run(); }

Campaign run_campaign(uint64_t runs, uint64_t first_seed, Break broken, size_t stop_after,
                      const std::function<void(const Campaign&)>& progress) {
  Campaign out;
  for (uint64_t seed = first_seed; seed < first_seed + runs; ++seed) {
    const Outcome outcome = run_plan(draw_plan(seed, broken));
    ++out.runs;
    out.events += outcome.events;
    out.completed += static_cast<uint64_t>(outcome.completed);
    out.failed += static_cast<uint64_t>(outcome.failed);
    out.abandoned += static_cast<uint64_t>(outcome.abandoned);
    out.handoffs += outcome.handoffs;
    out.fenced += outcome.fenced;
    if (!outcome.violation.empty()) {
      if (out.bad_seeds.empty()) out.violation = outcome.violation;
      out.bad_seeds.push_back(seed);
    }
    if (progress) progress(out);
    if (out.bad_seeds.size() >= stop_after) break;
  }
  return out;
}

}  // namespace tandem::sim
