// linear with int8 activations on AVX2, eight rows of weights at a time.
//
// Q4: codes are 0..15, so eight vpmaddubsw results add up in int16: 8 * 2 * 15 * 127 = 30,480 <
// 32,767, exactly one block of 32, then one vpmaddwd to int32. Two vector operations per 32
// multiply-adds. Q8: |w| * sign(x, w) is exact: 128 * 127 * 2 = 32,512 fits one vpmaddubsw; four
// operations per 32 multiply-adds. The integer sums equal the AVX-512 ones, and so does the float32
// arithmetic that follows.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/simd_avx2.h"

namespace tandem::ops::cpu {
namespace {

// One block of eight rows: eight vectors of codes (unsigned nibbles, or signed bytes for Q8_0).
struct Block {
  __m256i code[8];
  __m256 d;
  __m256 m;
};

inline __m256 load_scales(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

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
inline Block load_block(const std::byte* chunk, size_t inside, int half) {
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  const auto* scales = reinterpret_cast<const uint16_t*>(chunk + inside * kShape.scale_bytes);
  const std::byte* codes = chunk + kShape.blocks * kShape.scale_bytes + inside * kShape.code_bytes;
  Block w;
  if constexpr (kFormat == weights::Format::kQ80) {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      const auto* p = reinterpret_cast<const __m256i*>(codes + j * 64 + half * 32);
      w.code[j] = _mm256_xor_si256(_mm256_loadu_si256(p), flip);
    }
  } else {
    const __m256i nibble = _mm256_set1_epi8(15);
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j) {
      const auto* p = reinterpret_cast<const __m256i*>(codes + j * 64 + half * 32);
      const __m256i both = _mm256_loadu_si256(p);
      w.code[j] = _mm256_and_si256(both, nibble);
      w.code[j + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    }
  }
  w.d = load_scales(scales + half * 8);
  w.m =
      kFormat == weights::Format::kQ41 ? load_scales(scales + 16 + half * 8) : _mm256_setzero_ps();
  return w;
}

template <weights::Format kFormat>
inline __m256 add_block(const Block& w, const ActivationBlock& x, __m256 acc) {
  const auto* four = reinterpret_cast<const int32_t*>(x.q);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  if constexpr (kFormat == weights::Format::kQ80) {
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(four[j]), w.code[j]);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w.code[j]), signed_x);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
  } else {
    __m256i pairs = _mm256_setzero_si256();
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w.code[j], _mm256_set1_epi32(four[j])));
    }
    sum = _mm256_madd_epi16(pairs, ones);
    if constexpr (kFormat == weights::Format::kQ40)
      sum = _mm256_add_epi32(sum, _mm256_set1_epi32(x.minus_8_sum));
  }
  acc = _mm256_fmadd_ps(_mm256_mul_ps(w.d, _mm256_set1_ps(x.d)), _mm256_cvtepi32_ps(sum), acc);
  if constexpr (kFormat == weights::Format::kQ41)
    acc = _mm256_fmadd_ps(w.m, _mm256_set1_ps(x.d_times_sum), acc);
  return acc;
}

template <weights::Format kFormat, int kRows>
inline void multiply_rows(const std::byte* group, size_t blocks, int half, const ActivationBlock* x,
                          size_t stride_x, int32_t valid, float* out, size_t stride_out) {
  __m256 acc[kRows];
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) acc[m] = _mm256_setzero_ps();
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  static_assert(kShape.blocks == 2);
  const auto step = [&](const std::byte* chunk, size_t inside, size_t block) {
    const Block w = load_block<kFormat>(chunk, inside, half);
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
  for (int m = 0; m < kRows; ++m) {
    if (valid >= 8) {
      _mm256_storeu_ps(out + m * stride_out, acc[m]);
    } else {
      alignas(32) float lanes[8];
      _mm256_store_ps(lanes, acc[m]);
      for (int32_t lane = 0; lane < valid; ++lane) out[m * stride_out + lane] = lanes[lane];
    }
  }
}

template <weights::Format kFormat>
void multiply_half(const LinearI8& p, const std::byte* group, int half, int32_t valid, float* out) {
  const auto blocks = static_cast<size_t>(p.weights.columns / 32);
  const ActivationBlock* x = p.x;
  int32_t rows = p.rows;
  for (; rows >= 4; rows -= 4) {
    multiply_rows<kFormat, 4>(group, blocks, half, x, p.stride_x, valid, out, p.stride_out);
    x += 4 * p.stride_x;
    out += 4 * p.stride_out;
  }
  for (; rows >= 1; --rows) {
    multiply_rows<kFormat, 1>(group, blocks, half, x, p.stride_x, valid, out, p.stride_out);
    x += p.stride_x;
    out += p.stride_out;
  }
}

template <weights::Format kFormat>
void multiply_group(const LinearI8& p, const std::byte* group, int32_t valid, float* out) {
  multiply_half<kFormat>(p, group, 0, valid, out);
  if (valid > 8) multiply_half<kFormat>(p, group, 1, valid - 8, out + 8);
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
