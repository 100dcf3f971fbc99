// Sixteen float32 lanes as two AVX2 registers. Included by *_avx2.cc only, once each; everything
// has internal linkage, so no AVX code can be shared with baseline files by the linker.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace tandem::ops::cpu {
namespace {

struct Vec {
  __m256 a;
  __m256 b;
};
struct IntVec {
  __m256i a;
  __m256i b;
};

// Rows of activations multiplied per pass: 12 accumulators of the 16 registers.
constexpr int kMaxTileRows = 6;
// Accumulators of an attention tile, as vectors of two registers each.
constexpr int kTileVectors = 6;

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Vec fnma(Vec x, Vec y, Vec z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec round_nearest(Vec x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
// value where x >= limit (or x is NaN), else 0.
inline Vec keep_at_least(Vec value, Vec x, Vec limit) {
  return {_mm256_and_ps(value.a, _mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ)),
          _mm256_and_ps(value.b, _mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ))};
}
inline __m256 scale_half(__m256 x, __m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
// x * 2^n for whole n in -126..127.
inline Vec scale_by_power(Vec x, Vec n) { return {scale_half(x.a, n.a), scale_half(x.b, n.b)}; }

inline Vec load_f16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Vec load_bf16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(q)), widen_bf16(_mm_loadu_si128(q + 1))};
}
// Sixteen values from each of two places, in an order of their own: one operation a register
// instead of two. store_bf16_pair puts them back in order.
inline void load_bf16_pair(const uint16_t* p, const uint16_t* q, Vec& x, Vec& y) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i high = _mm256_set1_epi32(-65536);
  x = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
       _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  y = {_mm256_castsi256_ps(_mm256_and_si256(a, high)),
       _mm256_castsi256_ps(_mm256_and_si256(b, high))};
}
inline void store_in_turn(float* p, __m256 even, __m256 odd) {
  const __m256 low = _mm256_unpacklo_ps(even, odd);
  const __m256 high = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
inline void store_bf16_pair(float* p, float* q, Vec x, Vec y) {
  store_in_turn(p, x.a, y.a);
  store_in_turn(q, x.b, y.b);
}
// Eight of load_e4m3's codes, already in the low half of a register.
inline __m256 widen_e4m3(__m128i codes) {
  const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
  return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(static_cast<int16_t>(0xBF80))));
}
// Sixteen e4m3 codes as value / 256, exactly; the NaN codes read as 480 / 256. A code's bits, moved
// to where F16 has its exponent and mantissa, are the F16 number 2^-8 times as large (subnormals
// too), and widening F16 costs no detour through denormal float32.
inline Vec load_e4m3(const uint8_t* p) {
  return {widen_e4m3(_mm_loadu_si64(p)), widen_e4m3(_mm_loadu_si64(p + 8))};
}
// Whether one of `bytes` e4m3 codes is NaN.
inline bool any_nan_e4m3(const uint8_t* p, size_t bytes) {
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  __m256i largest = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i));
    largest = _mm256_max_epu8(largest, _mm256_and_si256(codes, magnitude));
  }
  for (; i < bytes; ++i) {
    if ((p[i] & 0x7F) == 0x7F) return true;
  }
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, magnitude)) != 0;
}
// The first `count` lanes, the rest zero.
inline Vec load_partial(const float* p, int count) {
  alignas(32) float lanes[16] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}

inline IntVec load_i32(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline IntVec widen_u8(const void* p) {
  const auto* q = static_cast<const char*>(p);
  return {_mm256_cvtepu8_epi32(_mm_loadu_si64(q)), _mm256_cvtepu8_epi32(_mm_loadu_si64(q + 8))};
}
inline IntVec widen_i8(const void* p) {
  const auto* q = static_cast<const char*>(p);
  return {_mm256_cvtepi8_epi32(_mm_loadu_si64(q)), _mm256_cvtepi8_epi32(_mm_loadu_si64(q + 8))};
}
inline IntVec splat_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline IntVec shift_right(IntVec x, int bits) {
  const __m128i n = _mm_cvtsi32_si128(bits);
  return {_mm256_srl_epi32(x.a, n), _mm256_srl_epi32(x.b, n)};
}
inline IntVec shift_left(IntVec x, int bits) {
  const __m128i n = _mm_cvtsi32_si128(bits);
  return {_mm256_sll_epi32(x.a, n), _mm256_sll_epi32(x.b, n)};
}
inline IntVec bit_and(IntVec x, IntVec y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
inline IntVec bit_or(IntVec x, IntVec y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
inline IntVec add_i32(IntVec x, IntVec y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
inline IntVec max_i32(IntVec x, IntVec y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
inline IntVec sub_i32(IntVec x, IntVec y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
inline IntVec min_i32(IntVec x, IntVec y) {
  return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)};
}
// x < y ? yes : no
inline IntVec select_less(IntVec x, IntVec y, IntVec yes, IntVec no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_cmpgt_epi32(y.a, x.a)),
          _mm256_blendv_epi8(no.b, yes.b, _mm256_cmpgt_epi32(y.b, x.b))};
}
inline Vec float_of_bits(IntVec x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
// The low halves of the lanes.
inline void store_u16(uint16_t* p, IntVec x) {
  const __m256i low = _mm256_set1_epi32(0xFFFF);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xD8));
}
inline Vec to_float(IntVec x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline IntVec to_int(Vec x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline IntVec bits_of(Vec x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline void store_i8(int8_t* p, IntVec x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// Reductions in one fixed order.
inline float sum_lanes(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float max_lanes(Vec x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline int32_t sum_lanes(IntVec x) {
  const __m256i eight = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
inline int32_t max_lanes(IntVec x) {
  const __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

inline __m256 rotate_half(__m256 x, __m256 cos_sin) {
  const __m256 cosine = _mm256_moveldup_ps(cos_sin);
  const __m256 sine = _mm256_movehdup_ps(cos_sin);
  return _mm256_fmaddsub_ps(x, cosine, _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), sine));
}
// {a0*c0 - a1*s0, a0*s0 + a1*c0, ...}: eight adjacent pairs rotated by eight {cos, sin} pairs.
inline Vec rotate_pairs(Vec x, Vec cos_sin) {
  return {rotate_half(x.a, cos_sin.a), rotate_half(x.b, cos_sin.b)};
}

}  // namespace
}  // namespace tandem::ops::cpu
