#include "ops/cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "device/compute_threads.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/probes.h"

namespace tandem::ops::cpu {
namespace {

volatile double keep_result;  // makes the probes' results observable

// Best of five: the ceiling is what the machine does when nobody disturbs it. All threads do the
// same; `function` gets the thread's index.
template <typename Function>
double best_seconds(device::ComputeThreads& threads, Function&& function) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    std::vector<double> results(static_cast<size_t>(threads.count()));
    const auto start = std::chrono::steady_clock::now();
    threads.parallel([&](int index, int) {
      results[static_cast<size_t>(index)] = static_cast<double>(function(index));
    });
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (const double result : results) keep_result = result;
  }
  return best;
}

Probes probes_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return probes_amx();
  if (isa == Isa::kAvx512) return probes_avx512();
  if (isa == Isa::kAvx2) return probes_avx2();
#endif
  return probes_scalar();
}

}  // namespace

MachineLimits measure_limits(Isa isa, int threads) {
  const Probes probes = probes_for(isa);
  constexpr int64_t kRounds = 2'000'000;
  device::ComputeThreads compute(threads);
  const double rounds = static_cast<double>(kRounds) * compute.count();
  MachineLimits limits;
  limits.float_operations =
      probes.float_operations_per_round * rounds /
      best_seconds(compute, [&](int) { return probes.float_multiply_adds(kRounds); });
  if (kernels_for(isa).linear_bf16 != nullptr) {
    limits.bf16_operations = probes.bf16_operations_per_round * rounds /
                             best_seconds(compute, [&](int) { return probes.bf16_dots(kRounds); });
  }
  limits.int8_operations = probes.int8_operations_per_round * rounds /
                           best_seconds(compute, [&](int) { return probes.int8_dots(kRounds); });
  constexpr size_t kBytes = size_t{1} << 30;  // more than any cache there is
  const size_t share = kBytes / static_cast<size_t>(compute.count()) / 4096 * 4096;
  const AlignedBytes data = allocate_aligned(kBytes);
  if (data) {
    limits.memory_bytes =
        static_cast<double>(share) * compute.count() / best_seconds(compute, [&](int index) {
          return probes.read(data.get() + static_cast<size_t>(index) * share, share);
        });
  }
  return limits;
}

}  // namespace tandem::ops::cpu
