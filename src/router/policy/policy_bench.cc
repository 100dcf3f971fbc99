// The decision itself: placement over a pool, and finding a 16k-token prompt in the prefix map.
#include <benchmark/benchmark.h>

#include "router/policy/policy.h"
#include "router/policy/prefix_map.h"

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

void bench_prefix_match(benchmark::State& state) {
  PrefixMap map(256 << 20);
  std::vector<int32_t> tokens(16384);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 31 % 50000);
  const auto ids = protocol::content_ids(protocol::root_content_id("m", 16, ""), tokens, 16);
  map.insert(ids, 3);
  for (auto _ : state) benchmark::DoNotOptimize(map.match(ids, 16));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}
BENCHMARK(bench_prefix_match);

}  // namespace
}  // namespace tandem::router
