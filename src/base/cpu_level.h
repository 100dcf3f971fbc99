// Which instruction sets this machine has; what kernels are chosen by.
#pragma once

#include <cstdint>

namespace tandem {

// AVX2 includes FMA, F16C and BMI; AVX-512 means F, BW, VL, DQ, VNNI, BF16 and VBMI; AMX its tiles
// of int8 and BF16 besides. The files named *_avx2.cc, *_avx512.cc and *_amx.cc are compiled for
// all of these, so the machine must have all of them.
enum class CpuLevel : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };
inline constexpr CpuLevel kCpuLevels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512,
                                          CpuLevel::kAmx};

// The highest that this machine can run; scalar where it is no x86-64. The first call asks the
// system to let this process use AMX's tiles. Thread-safe.
CpuLevel machine_cpu_level();

}  // namespace tandem
