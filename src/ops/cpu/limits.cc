#include "ops/cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops/cpu/probes.h"

namespace tandem::ops::cpu {
namespace {

volatile double keep_result;  // makes the probes' results observable

// Best of five: the ceiling is what the machine does when nobody disturbs it.
template <typename Function>
double best_seconds(Function&& function) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    keep_result = static_cast<double>(function());
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

Probes probes_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return probes_avx512();
    case Isa::kAvx2:
      return probes_avx2();
    case Isa::kScalar:
      break;
  }
  return probes_scalar();
}

}  // namespace

MachineLimits measure_limits(Isa isa) {
  const Probes probes = probes_for(isa);
  constexpr int64_t kRounds = 2'000'000;
  MachineLimits limits;
  limits.float_operations = probes.float_operations_per_round * static_cast<double>(kRounds) /
                            best_seconds([&] { return probes.float_multiply_adds(kRounds); });
  limits.int8_operations = probes.int8_operations_per_round * static_cast<double>(kRounds) /
                           best_seconds([&] { return probes.int8_dots(kRounds); });
  constexpr size_t kBytes = size_t{256} << 20;
  const AlignedBytes data = allocate_aligned(kBytes);
  if (data) {
    limits.memory_bytes =
        static_cast<double>(kBytes) / best_seconds([&] { return probes.read(data.get(), kBytes); });
  }
  return limits;
}

}  // namespace tandem::ops::cpu
