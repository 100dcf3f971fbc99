// Time per sampled token at the sizes of real vocabularies. The floor is one read of the logits
// from memory.
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "sample/sampler.h"

namespace tandem::sample {
namespace {

void run(benchmark::State& state, const Filters& filters) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(state.range(0)));
  for (float& logit : logits) logit = normal(engine);
  int64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sample(logits, filters, 1, 0, position++));
  state.SetBytesProcessed(state.iterations() * state.range(0) *
                          static_cast<int64_t>(sizeof(float)));
}

void greedy(benchmark::State& state) { run(state, {.temperature = 0}); }
void plain(benchmark::State& state) { run(state, {}); }
void top_k(benchmark::State& state) { run(state, {.temperature = 0.8F, .top_k = 40}); }
void top_p(benchmark::State& state) { run(state, {.temperature = 0.8F, .top_p = 0.95F}); }
BENCHMARK(greedy)->Arg(49152)->Arg(151936);
BENCHMARK(plain)->Arg(49152)->Arg(151936);
BENCHMARK(top_k)->Arg(49152)->Arg(151936);
BENCHMARK(top_p)->Arg(49152)->Arg(151936);

}  // namespace
}  // namespace tandem::sample
