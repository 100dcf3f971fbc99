#include "base/cpu_level.h"

namespace tandem {

#if defined(__x86_64__)
CpuLevel machine_cpu_level() {
  static const CpuLevel kLevel = [] {
    // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2");
    const bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
        __builtin_cpu_supports("avx512vbmi");
    return avx512 ? CpuLevel::kAvx512 : avx2 ? CpuLevel::kAvx2 : CpuLevel::kScalar;
  }();
  return kLevel;
}
#else
CpuLevel machine_cpu_level() { return CpuLevel::kScalar; }
#endif

}  // namespace tandem
