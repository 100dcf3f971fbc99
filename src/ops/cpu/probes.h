// Loops that keep one execution resource busy, per instruction set; limits.cc times them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::ops::cpu {

// Each returns a value that depends on all of the work, so that none of it can be left out.
struct Probes {
  float (*float_multiply_adds)(int64_t rounds);
  double float_operations_per_round;
  int32_t (*int8_dots)(int64_t rounds);
  double int8_operations_per_round;
  // Products of BF16 pairs; null where Kernels has none.
  float (*bf16_dots)(int64_t rounds);
  double bf16_operations_per_round;
  uint64_t (*read)(const std::byte* data, size_t bytes);  // bytes: a multiple of 512
};

Probes probes_scalar();
Probes probes_avx2();
Probes probes_avx512();
// Products in tiles, those of int8 of 32 columns as the kernels make them; the rest is AVX-512's.
Probes probes_amx();

}  // namespace tandem::ops::cpu
