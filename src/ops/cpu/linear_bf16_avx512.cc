// linear with BF16 weights and activations: vdpbf16ps, 32 multiply-adds each, one a cycle on Zen 4,
// where that is twice the float32 rate. (On Emerald Rapids it is half of it: dispatch.cc.)
//
// One accumulator per output, in order of the column pairs, whatever the number of rows or of
// groups side by side. Two groups of 16 outputs and twelve rows take 24 of 32 registers; the
// instruction's latency of six cycles needs six. The activations come as broadcast operands, which
// cost nothing beside the product.
#include <immintrin.h>

#include "ops/cpu/avx512.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kMostRows = 12;

// By hand: left alone, the compiler loads the pair into a register when two groups share it, which
// takes an operation of its own.
inline __m512 add_pair(__m512 sum, __m512i weights, const uint16_t* x) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(x)));
  return sum;
}

// kGroups neighbouring groups, of which the last has `valid` outputs, times kRows rows.
template <int kGroups, int kRows>
inline void multiply(const LinearBf16& p, const std::byte* group, int32_t valid, const uint16_t* x,
                     float* out) {
  __m512 sum[kGroups][kRows];
#pragma clang loop unroll(full)
  for (int g = 0; g < kGroups; ++g) {
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) sum[g][m] = _mm512_setzero_ps();
  }
  const auto pairs = static_cast<size_t>((p.weights.columns + 1) / 2);
#pragma clang loop unroll_count(2)
  for (size_t k = 0; k < pairs; ++k) {
    __m512i weights[kGroups];
#pragma clang loop unroll(full)
    for (int g = 0; g < kGroups; ++g) {
      weights[g] =
          _mm512_loadu_si512(group + static_cast<size_t>(g) * p.weights.group_bytes + k * 64);
    }
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g)
        sum[g][m] = add_pair(sum[g][m], weights[g], x + m * p.stride_x + 2 * k);
    }
  }
#pragma clang loop unroll(full)
  for (int g = 0; g < kGroups; ++g) {
    const auto mask =
        static_cast<__mmask16>(g + 1 < kGroups || valid >= 16 ? 0xFFFF : (1U << valid) - 1);
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m)
      _mm512_mask_storeu_ps(out + m * p.stride_out + g * kGroupRows, mask, sum[g][m]);
  }
}

template <int kGroups>
void multiply_groups(const LinearBf16& p, int32_t first) {
  const std::byte* group = p.weights.data + static_cast<size_t>(first) * p.weights.group_bytes;
  const int32_t valid = p.weights.rows - (first + kGroups - 1) * kGroupRows;
  const uint16_t* x = p.x;
  float* out = p.out + static_cast<ptrdiff_t>(first) * kGroupRows;
  int32_t rows = p.rows;
  const auto take = [&]<int kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      multiply<kGroups, kRows>(p, group, valid, x, out);
      x += kRows * p.stride_x;
      out += kRows * p.stride_out;
    }
  };
  take.template operator()<kMostRows>();
  take.template operator()<8>();
  take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

}  // namespace

void linear_bf16_avx512(const LinearBf16& p) {
  int32_t group = p.group_begin;
  for (; group + 2 <= p.group_end; group += 2) multiply_groups<2>(p, group);
  if (group < p.group_end) multiply_groups<1>(p, group);
}

}  // namespace tandem::ops::cpu
