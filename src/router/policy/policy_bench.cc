// The decision itself: placement over a pool.
#include <benchmark/benchmark.h>

#include "router/policy/policy.h"

namespace tandem::router {
namespace {

void bench_placement(benchmark::State& state) {
  std::vector<WorkerSnapshot> workers;
  for (WorkerId id = 0; id < static_cast<WorkerId>(state.range(0)); ++id) {
    WorkerSnapshot worker;
    worker.id = id;
    worker.role = id % 2 == 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
    worker.key = stable_hash(std::to_string(id));
    worker.running = static_cast<int32_t>(id % 7);
    workers.push_back(worker);
  }
  PlacementRequest request;
  request.prompt_tokens = 4000;
  for (auto _ : state) {
    ++request.affinity;
    benchmark::DoNotOptimize(choose_placement(workers, request, {}));
  }
}
BENCHMARK(bench_placement)->Arg(2)->Arg(16)->Arg(128)->Arg(1000);

}  // namespace
}  // namespace tandem::router
