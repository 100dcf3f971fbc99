// The decision itself, placement over a pool, and what it needs to remember of a prompt.
#include <benchmark/benchmark.h>

#include "numerics/mix.h"
#include "router/policy/policy.h"
#include "router/policy/recent_tokens.h"

namespace tandem::router {
namespace {

// As a router does for each request: what the workers' sessions weigh by now, then the choice.
void bench_placement(benchmark::State& state) {
  std::vector<WorkerSnapshot> workers;
  std::vector<RecentTokens> recent(static_cast<size_t>(state.range(0)));
  TimePoint now{std::chrono::seconds(1000)};
  for (WorkerId id = 0; id < static_cast<WorkerId>(state.range(0)); ++id) {
    WorkerSnapshot worker;
    worker.id = id;
    worker.role = id % 2 == 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
    worker.key = stable_hash(std::to_string(id));
    worker.running = static_cast<int32_t>(id % 7);
    workers.push_back(worker);
    const uint64_t block = id;
    recent[id].touch({&block, 1}, 512, now - std::chrono::seconds(id % 20));
  }
  PlacementRequest request;
  request.prompt_tokens = 4000;
  for (auto _ : state) {
    ++request.affinity;
    for (WorkerSnapshot& worker : workers) {
      worker.recent_tokens = recent[worker.id].of_minute(now);
      worker.reusable_tokens = recent[worker.id].of_ten_minutes(now);
    }
    benchmark::DoNotOptimize(choose_placement(workers, request, {}));
  }
}
BENCHMARK(bench_placement)->Arg(2)->Arg(16)->Arg(128)->Arg(1000);

// A prompt of so many tokens in blocks of 16, of a session of its own among a hundred.
void bench_touch(benchmark::State& state) {
  std::vector<std::vector<uint64_t>> prompts(100);
  for (uint64_t session = 0; session < prompts.size(); ++session) {
    for (int64_t block = 0; block < state.range(0) / 16; ++block)
      prompts[session].push_back(mix64(session << 32U | static_cast<uint64_t>(block)) >> 8U);
  }
  RecentTokens recent;
  TimePoint now{std::chrono::seconds(100)};
  size_t turn = 0;
  for (auto _ : state) {
    now += std::chrono::milliseconds(100);
    recent.touch(prompts[++turn % prompts.size()], 16, now);
    benchmark::DoNotOptimize(recent.of_minute(now));
  }
}
BENCHMARK(bench_touch)->Arg(4'000)->Arg(100'000);

}  // namespace
}  // namespace tandem::router
