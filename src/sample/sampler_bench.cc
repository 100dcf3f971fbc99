// Time per sampled token at the sizes of real vocabularies. The floor is one read of the logits
// from memory.
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "sample/sequence_sampler.h"

namespace tandem::sample {
namespace {

void run(benchmark::State& state, const Filters& filters) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(state.range(0)));
  for (float& logit : logits) logit = normal(engine);
  int64_t position = 0;
  Scratch scratch;
  for (auto _ : state) benchmark::DoNotOptimize(sample(logits, filters, 1, 0, position++, scratch));
  state.SetBytesProcessed(state.iterations() * state.range(0) *
                          static_cast<int64_t>(sizeof(float)));
}

void greedy(benchmark::State& state) { run(state, {.temperature = 0}); }
void plain(benchmark::State& state) { run(state, {}); }
void top_k(benchmark::State& state) { run(state, {.temperature = 0.8F, .top_k = 40}); }
void top_p(benchmark::State& state) { run(state, {.temperature = 0.8F, .top_p = 0.95F}); }
void min_p(benchmark::State& state) { run(state, {.temperature = 0.8F, .min_p = 0.05F}); }
void typical(benchmark::State& state) { run(state, {.temperature = 0.8F, .typical_p = 0.95F}); }

// A sequence of 1000 generated tokens with everything on, as the executor samples it.
void penalties_and_logprobs(benchmark::State& state) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(state.range(0)));
  for (float& logit : logits) logit = normal(engine);
  protocol::SamplingParams params;
  params.frequency_penalty = 0.5F;
  params.repetition_penalty = 1.1F;
  params.logprobs = 5;
  std::vector<int32_t> tokens(2000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(engine() % 5000);
  const auto prompt = std::span(tokens).first(1000);
  SequenceSampler sampler(params, {}, 1, 0, prompt);
  sampler.note(1000, std::span(tokens).subspan(1000));
  Scratch scratch;
  std::vector<float> row;
  for (auto _ : state) {
    row = logits;
    benchmark::DoNotOptimize(sampler.sample(row, 2000, scratch));
  }
}
// All of them, as a request with everything set.
void all_filters(benchmark::State& state) {
  run(state, {.temperature = 0.8F, .top_k = 64, .top_p = 0.95F, .min_p = 0.05F});
}

constexpr int64_t kSmolLm2 = 49152;
constexpr int64_t kQwen = 151936;
constexpr int64_t kGemma = 262144;
void sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t size : {kSmolLm2, kQwen, kGemma}) bench->Arg(size);
}
BENCHMARK(penalties_and_logprobs)->Arg(kSmolLm2)->Arg(kGemma);
BENCHMARK(greedy)->Apply(sizes);
BENCHMARK(plain)->Apply(sizes);
BENCHMARK(top_k)->Apply(sizes);
BENCHMARK(top_p)->Apply(sizes);
BENCHMARK(min_p)->Apply(sizes);
BENCHMARK(typical)->Apply(sizes);
BENCHMARK(all_filters)->Apply(sizes);

}  // namespace
}  // namespace tandem::sample
