#include "base/cpu_level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem {

#if defined(__x86_64__)
namespace {

// Tiles are 8 KiB of state that the kernel saves only for processes that asked for them.
bool may_use_tiles() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  constexpr uint32_t kBf16 = 1U << 22;
  constexpr uint32_t kTile = 1U << 24;
  constexpr uint32_t kInt8 = 1U << 25;
  constexpr uint32_t kAll = kBf16 | kTile | kInt8;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  constexpr long kTileData = 18;               // the state's number in XCR0
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

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
    if (avx512 && may_use_tiles()) return CpuLevel::kAmx;
    return avx512 ? CpuLevel::kAvx512 : avx2 ? CpuLevel::kAvx2 : CpuLevel::kScalar;
  }();
  return kLevel;
}
#else
CpuLevel machine_cpu_level() { return CpuLevel::kScalar; }
#endif

}  // namespace tandem
