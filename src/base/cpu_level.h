// Which instruction sets this machine has; what kernels are chosen by.
#pragma once

#include <cstdint>

namespace tandem {

// AVX2 includes FMA, F16C and BMI; AVX-512 means F, BW, VL, DQ, VNNI, BF16 and VBMI. The files
// named
// *_avx2.cc and *_avx512.cc are compiled for all of these, so the machine must have all of them.
enum class CpuLevel : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// The highest that this machine can run; scalar where it is no x86-64. Thread-safe.
CpuLevel machine_cpu_level();

}  // namespace tandem
