// The int8 dot product of AVX-512 VNNI: vpdpbusd, 64 multiply-adds each. Integer sums stay below
// 255
// * 127 * 32 * 2 < 2^21, so the int32 dot product is exact and so is its float32 value. The scale
// work per tile bounds the kernel to about two thirds of the vpdpbusd peak; for one row memory is
// the bound.
// clang-format off: the vector types come first
#include "ops/cpu/bytes_avx512.h"
#include "ops/cpu/tile.inl.h"
#include "ops/cpu/kernels.h"
// clang-format on

namespace tandem::ops::cpu {
namespace {

constexpr int kMaxI8Rows = 16;  // with eight code vectors and the scales, 27 of 32 registers
constexpr int kDotRows = 8;
constexpr bool kInlineTiles = true;
// Measured: two tiles side by side hide more of what a minimum adds, and only spill more without.
template <Format kFormat>
constexpr int kTileUnroll = kFormat == Format::kQ41 || kFormat == Format::kQ51 ? 2 : 1;
// Measured: on Zen 4 asking early costs a fifth of the rate that the hardware's own prefetching
// reaches on one stream (30 of 33 GB/s); on Emerald Rapids, with rows from memory, it gives 1.6
// times the rate with one row and 1.3 times with sixteen.
constexpr size_t kStreamAhead = 8192;
inline bool asks_early() { return __builtin_cpu_is("intel"); }
constexpr int32_t kPanelFrom = 0;  // never: all codes of a tile fit the registers
template <Format kFormat>
constexpr bool kSignedCodes = false;
template <Format kFormat>
inline void multiply_panels(const LinearI8&, const std::byte*, int32_t, float*) {}

// -zero * sum(q) in every lane.
template <int kZero, int kSubs>
inline __m512i zero_share(const ActivationBlock& x, int sub) {
  constexpr int kStored = kSubs == 1 ? 8 : 1;  // what the block's sums are multiplied with already
  constexpr int kShift = __builtin_ctz(kZero / kStored);
  static_assert(kZero == kStored << kShift);
  const int32_t sum = kSubs == 1 ? x.minus_8_sum : x.minus_half[sub];
  return _mm512_slli_epi32(_mm512_set1_epi32(sum), kShift);
}

// Sums over the tile's (or sub-tile's) columns of code * q as float32, of kRows rows. A product
// waits five cycles for the one before it of the same row, so the rows take turns: one row after
// the other, the scheduler (97 entries on Golden Cove) fills with what waits, and both ports with
// half of what they could do. Left alone, the compiler puts the rows one after the other again.
template <Format kFormat, int kSubs, int kRows>
__attribute__((always_inline)) inline void dots(const Bytes* code, const ActivationBlock* x,
                                                size_t stride_x, int sub, Floats (&out)[kRows]) {
  constexpr int kZero = unsigned_zero<kFormat>();
  __m512i sum[kRows];
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) {
    sum[m] = _mm512_setzero_si512();
    if constexpr (kZero != 0) sum[m] = zero_share<kZero, kSubs>(x[m * stride_x], sub);
  }
#pragma clang loop unroll(full)
  for (int j = 0; j < 8 / kSubs; ++j) {
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
      const auto* four = reinterpret_cast<const int32_t*>(x[m * stride_x].q) + sub * (8 / kSubs);
      sum[m] = _mm512_dpbusd_epi32(sum[m], code[j], _mm512_set1_epi32(four[j]));
    }
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) asm("" : "+v"(sum[m]));
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) out[m] = _mm512_cvtepi32_ps(sum[m]);
}

}  // namespace
}  // namespace tandem::ops::cpu

// clang-format off: written in terms of the above
#include "ops/cpu/linear_i8.inl.h"
#include "ops/cpu/avx512.h"
// clang-format on

namespace tandem::ops::cpu {

void linear_i8_avx512(const LinearI8& params) { linear_i8(params); }

}  // namespace tandem::ops::cpu
