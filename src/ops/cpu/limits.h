// What threads of this machine can do at most, measured: the ceilings that benches divide by.
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

struct MachineLimits {          // per second, all threads together
  double memory_bytes = 0;      // long sequential read from DRAM
  double float_operations = 0;  // float32 multiply and add, two per multiply-add
  double bf16_operations = 0;   // products of BF16 pairs; 0 where the kernels do not use them
  double int8_operations = 0;   // int8 multiply and add as the kernels do it
};

// Takes about a second. `isa` must be one the machine has.
MachineLimits measure_limits(Isa isa, int threads = 1);

}  // namespace tandem::ops::cpu
