// Ten million blocks of eight workers: resident bytes per block, inserts, look-ups of a prompt of
// 100k tokens (6,250 blocks of 16). Prints p50 and p99 of look-ups as counters, in microseconds.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include "router/prefix/prefix_holders.h"

namespace tandem::router {
namespace {

constexpr size_t kBlocks = 10'000'000;
constexpr size_t kPrompt = 6250;
constexpr uint32_t kWorkers = 8;

size_t resident_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  unsigned long pages[2] = {0, 0};
  const int read = file == nullptr ? 0 : std::fscanf(file, "%lu %lu", &pages[0], &pages[1]);
  if (file != nullptr) std::fclose(file);
  return read == 2 ? pages[1] * static_cast<size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::vector<BlockKey> chain(uint64_t seed, size_t blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks);
  BlockKey parent = 1 + seed;
  for (size_t i = 0; i < blocks; ++i) {
    const int32_t token = static_cast<int32_t>(seed);
    keys.push_back(parent = PrefixHasher::next(parent, std::span(&token, 1)));
  }
  return keys;
}

// Sessions of 6,250 blocks, each on one worker. Built once for all benches.
struct Full {
  BlockIndex index{size_t{1} << 30};
  size_t resident = 0;
  double seconds = 0;
  Full() {
    const size_t before = resident_bytes();
    std::vector<LaneId> lanes;
    lanes.reserve(kWorkers);
    for (uint32_t i = 0; i < kWorkers; ++i) lanes.push_back(*index.add_lane(i, 1));
    const TimePoint begin = std::chrono::steady_clock::now();
    for (uint64_t session = 0; session * kPrompt < kBlocks; ++session) {
      const LaneId lane = lanes[session % kWorkers];
      for (const BlockKey key : chain(session, kPrompt)) (void)index.insert(lane, key ^ 0xabc, key);
    }
    seconds = to_seconds(std::chrono::steady_clock::now() - begin);
    resident = resident_bytes() - before;
  }
};

Full& full() {
  static Full made;
  return made;
}

void bytes_per_block(benchmark::State& state) {
  Full& it = full();
  for (auto _ : state) benchmark::DoNotOptimize(it.index.blocks());
  const auto blocks = static_cast<double>(it.index.blocks());
  state.counters["blocks"] = blocks;
  state.counters["RSS_per_block"] = static_cast<double>(it.resident) / blocks;
  state.counters["bytes_per_block"] = static_cast<double>(it.index.bytes()) / blocks;
  state.counters["inserts_per_s"] = blocks / it.seconds;
}
BENCHMARK(bytes_per_block);

template <bool kExactly>
void look_up(benchmark::State& state) {
  Full& it = full();
  const auto held = static_cast<size_t>(state.range(0));
  std::mt19937_64 random(7);
  std::vector<double> times;
  for (auto _ : state) {
    state.PauseTiming();
    // The head of a known session, then a new text; keys are there before (their time is apart).
    auto keys = chain(random() % (kBlocks / kPrompt), kPrompt);
    const auto tail = chain(1'000'000 + random() % 1'000'000, kPrompt - held);
    std::copy(tail.begin(), tail.end(), keys.begin() + static_cast<std::ptrdiff_t>(held));
    state.ResumeTiming();
    const TimePoint begin = std::chrono::steady_clock::now();
    const auto found = kExactly ? it.index.match_exactly(keys) : it.index.match(keys);
    times.push_back(to_seconds(std::chrono::steady_clock::now() - begin) * 1e6);
    if (found.size() != (held > 0 ? 1U : 0U) ||
        (held > 0 && found[0].blocks != static_cast<int32_t>(held)))
      state.SkipWithError("wrong answer");
  }
  std::sort(times.begin(), times.end());
  state.counters["p50_us"] = times[times.size() / 2];
  state.counters["p99_us"] = times[times.size() * 99 / 100];
}
BENCHMARK(look_up<false>)->Arg(0)->Arg(1000)->Arg(6000)->Arg(6250)->Iterations(2000);
BENCHMARK(look_up<true>)->Arg(0)->Arg(1000)->Arg(6000)->Arg(6250)->Iterations(2000);

void hash_prompt(benchmark::State& state) {
  std::vector<int32_t> tokens(kPrompt * 16);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 150000);
  for (auto _ : state) benchmark::DoNotOptimize(PrefixHasher::of_tokens(1, tokens, 16));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * tokens.size()));
}
BENCHMARK(hash_prompt);

// A worker of 100,000 blocks is forgotten while another thread looks prompts up: the longest of its
// look-ups, and the whole clear.
void clear_a_worker(benchmark::State& state) {
  double longest = 0;
  for (auto _ : state) {
    state.PauseTiming();
    PrefixHolders holders({.max_bytes = size_t{64} << 20}, 1);
    holders.describe(0, "m", false);
    const TimePoint now = std::chrono::steady_clock::now();
    holders.believe(0, 0, chain(1, 100'000), now);
    const PromptKeys prompt{16, chain(2, kPrompt)};
    std::atomic<bool> done = false;
    std::thread looks([&] {
      while (!done) {
        const TimePoint begin = std::chrono::steady_clock::now();
        benchmark::DoNotOptimize(holders.match(std::span(&prompt, 1), begin));
        longest = std::max(longest, to_seconds(std::chrono::steady_clock::now() - begin) * 1e6);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    state.ResumeTiming();
    holders.forget(0);
    holders.tend(now);
    state.PauseTiming();
    done = true;
    looks.join();
    state.ResumeTiming();
  }
  state.counters["longest_look_up_us"] = longest;
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * 100'000));
}
BENCHMARK(clear_a_worker)->Iterations(10);

}  // namespace
}  // namespace tandem::router
