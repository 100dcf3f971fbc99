// linear with int8 activations on AVX-512 VNNI. Per block of 32 columns, 16 rows of weights and one
// row of activations: eight vpdpbusd (1,024 operations), one conversion and one scale product with
// its multiply-add (two with a minimum). Integer sums stay below 255 * 127 * 32 * 2 < 2^21, so the
// int32 dot product is exact and so is its float32 value. The scale work per block bounds this form
// to about two thirds of the vpdpbusd peak; for one row memory is the bound.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/simd_avx512.h"

namespace tandem::ops::cpu {
namespace {

// One block of weights in registers: eight vectors of unsigned codes, scales, and the minimum where
// the format has one.
struct Block {
  __m512i code[8];
  __m512 d;
  __m512 m;
};

// With few rows the weights come from memory and are used once: ask for them early. Running past
// the end is harmless.
constexpr size_t kPrefetchAhead = 1024;
template <size_t kBytes>
inline void prefetch_chunk(const std::byte* chunk) {
#pragma clang loop unroll(full)
  for (size_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(chunk + kPrefetchAhead + i), _MM_HINT_T0);
  }
}

template <weights::Format kFormat>
inline Block load_block(const std::byte* chunk, size_t inside) {
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  const auto* scales = reinterpret_cast<const uint16_t*>(chunk + inside * kShape.scale_bytes);
  const std::byte* codes = chunk + kShape.blocks * kShape.scale_bytes + inside * kShape.code_bytes;
  Block w;
  if constexpr (kFormat == weights::Format::kQ80) {
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) w.code[j] = _mm512_loadu_si512(codes + j * 64);
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_loadu_si512(codes + j * 64);
      w.code[j] = _mm512_and_si512(both, nibble);
      w.code[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    }
  }
  w.d = load_f16(scales).v;
  w.m = kFormat == weights::Format::kQ41 ? load_f16(scales + 16).v : _mm512_setzero_ps();
  return w;
}

template <weights::Format kFormat>
inline __m512 add_block(const Block& w, const ActivationBlock& x, __m512 acc) {
  __m512i sum;
  if constexpr (kFormat == weights::Format::kQ80) {
    sum = _mm512_set1_epi32(x.minus_128_sum);
  } else if constexpr (kFormat == weights::Format::kQ40) {
    sum = _mm512_set1_epi32(x.minus_8_sum);
  } else {
    sum = _mm512_setzero_si512();
  }
  const auto* four = reinterpret_cast<const int32_t*>(x.q);
#pragma clang loop unroll(full)
  for (int j = 0; j < 8; ++j) sum = _mm512_dpbusd_epi32(sum, w.code[j], _mm512_set1_epi32(four[j]));
  acc = _mm512_fmadd_ps(_mm512_mul_ps(w.d, _mm512_set1_ps(x.d)), _mm512_cvtepi32_ps(sum), acc);
  if constexpr (kFormat == weights::Format::kQ41)
    acc = _mm512_fmadd_ps(w.m, _mm512_set1_ps(x.d_times_sum), acc);
  return acc;
}

template <weights::Format kFormat, int kRows>
inline void multiply_rows(const std::byte* group, size_t blocks, const ActivationBlock* x,
                          size_t stride_x, int32_t valid, float* out, size_t stride_out) {
  __m512 acc[kRows];
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  static_assert(kShape.blocks == 2);
  const auto step = [&](const std::byte* chunk, size_t inside, size_t block) {
    const Block w = load_block<kFormat>(chunk, inside);
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) acc[m] = add_block<kFormat>(w, x[m * stride_x + block], acc[m]);
  };
  const std::byte* chunk = group;
  for (size_t block = 0; block + 2 <= blocks; block += 2, chunk += kShape.bytes) {
    if constexpr (kRows <= 4) prefetch_chunk<kShape.bytes>(chunk);
    step(chunk, 0, block);
    step(chunk, 1, block + 1);
  }
  if (blocks % 2 != 0) step(chunk, 0, blocks - 1);
  const auto mask = static_cast<__mmask16>((1U << valid) - 1);
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(out + m * stride_out, mask, acc[m]);
}

template <weights::Format kFormat>
void multiply_group(const LinearI8& p, const std::byte* group, int32_t valid, float* out) {
  const auto blocks = static_cast<size_t>(p.weights.columns / 32);
  const ActivationBlock* x = p.x;
  int32_t rows = p.rows;
  for (; rows >= 12; rows -= 12) {
    multiply_rows<kFormat, 12>(group, blocks, x, p.stride_x, valid, out, p.stride_out);
    x += 12 * p.stride_x;
    out += 12 * p.stride_out;
  }
  for (; rows >= 4; rows -= 4) {
    multiply_rows<kFormat, 4>(group, blocks, x, p.stride_x, valid, out, p.stride_out);
    x += 4 * p.stride_x;
    out += 4 * p.stride_out;
  }
  if (rows >= 2) {
    multiply_rows<kFormat, 2>(group, blocks, x, p.stride_x, valid, out, p.stride_out);
    x += 2 * p.stride_x;
    out += 2 * p.stride_out;
    rows -= 2;
  }
  if (rows == 1) multiply_rows<kFormat, 1>(group, blocks, x, p.stride_x, valid, out, p.stride_out);
}

inline void linear_i8(const LinearI8& p) {
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const std::byte* data = p.weights.data + static_cast<size_t>(group) * p.weights.group_bytes;
    const int32_t left = p.weights.rows - group * kGroupRows;
    const int32_t valid = left < kGroupRows ? left : kGroupRows;
    float* out = p.out + group * kGroupRows;
    switch (p.weights.format) {
      case weights::Format::kQ80:
        multiply_group<weights::Format::kQ80>(p, data, valid, out);
        break;
      case weights::Format::kQ40:
        multiply_group<weights::Format::kQ40>(p, data, valid, out);
        break;
      case weights::Format::kQ41:
        multiply_group<weights::Format::kQ41>(p, data, valid, out);
        break;
      default:
        break;  // the caller asked has_int8_kernel()
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
