// Sixteen float32 lanes on AVX-512. Included by *_avx512.cc and *_amx.cc only, once each;
// everything has internal linkage, so no AVX code can be shared with baseline files by the linker.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace tandem::ops::cpu {
namespace {

struct Vec {
  __m512 v;
};
struct IntVec {
  __m512i v;
};

// Rows of activations multiplied per pass: one accumulator each, enough to hide the multiply-add's
// latency.
constexpr int kMaxTileRows = 8;
// Accumulators of an attention tile, of 32 registers.
constexpr int kTileVectors = 16;

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round_nearest(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// value where x >= limit (or x is NaN), else 0.
inline Vec keep_at_least(Vec value, Vec x, Vec limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
}
inline Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline Vec load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load_bf16(const uint16_t* p) {
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Sixteen values from each of two places, in an order of their own: one operation a vector instead
// of two. store_bf16_pair puts them back in order.
inline void load_bf16_pair(const uint16_t* p, const uint16_t* q, Vec& x, Vec& y) {
  const __m512i both = _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), 1);
  x = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  y = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))};
}
inline void store_bf16_pair(float* p, float* q, Vec x, Vec y) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(x.v, first, y.v));
  _mm512_storeu_ps(q, _mm512_permutex2var_ps(x.v, second, y.v));
}
// Sixteen e4m3 codes as value / 256, exactly; the NaN codes read as 480 / 256. A code's bits, moved
// to where F16 has its exponent and mantissa, are the F16 number 2^-8 times as large (subnormals
// too), and widening F16 costs no detour through denormal float32.
inline Vec load_e4m3(const uint8_t* p) {
  const __m256i words = _mm256_slli_epi16(
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
  return {
      _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(static_cast<int16_t>(0xBF80))))};
}
// Whether one of `bytes` e4m3 codes is NaN.
inline bool any_nan_e4m3(const uint8_t* p, size_t bytes) {
  const __m512i magnitude = _mm512_set1_epi8(0x7F);
  __mmask64 found = 0;
  size_t i = 0;
  for (; i + 64 <= bytes; i += 64)
    found |=
        _mm512_cmpeq_epi8_mask(_mm512_and_si512(_mm512_loadu_si512(p + i), magnitude), magnitude);
  if (i < bytes) {
    const __m512i rest = _mm512_maskz_loadu_epi8((uint64_t{1} << (bytes - i)) - 1, p + i);
    found |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(rest, magnitude), magnitude);
  }
  return found != 0;
}
// The first `count` lanes, the rest zero.
inline Vec load_partial(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), p)};
}

inline IntVec load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
inline IntVec widen_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline IntVec widen_i8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline IntVec splat_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline IntVec shift_right(IntVec a, int bits) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(bits))};
}
inline IntVec shift_left(IntVec a, int bits) {
  return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(bits))};
}
inline IntVec bit_and(IntVec a, IntVec b) { return {_mm512_and_si512(a.v, b.v)}; }
inline IntVec bit_or(IntVec a, IntVec b) { return {_mm512_or_si512(a.v, b.v)}; }
inline IntVec add_i32(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IntVec max_i32(IntVec a, IntVec b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline IntVec sub_i32(IntVec a, IntVec b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline IntVec min_i32(IntVec a, IntVec b) { return {_mm512_min_epi32(a.v, b.v)}; }
// a < b ? x : y
inline IntVec select_less(IntVec a, IntVec b, IntVec x, IntVec y) {
  return {_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a.v, b.v), y.v, x.v)};
}
inline Vec float_of_bits(IntVec a) { return {_mm512_castsi512_ps(a.v)}; }
// The low halves of the lanes.
inline void store_u16(uint16_t* p, IntVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
inline Vec to_float(IntVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline IntVec to_int(Vec a) { return {_mm512_cvtps_epi32(a.v)}; }
inline IntVec bits_of(Vec a) { return {_mm512_castps_si512(a.v)}; }
inline void store_i8(int8_t* p, IntVec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}

// Reductions in one fixed order.
inline float sum_lanes(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float max_lanes(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline int32_t sum_lanes(IntVec a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t max_lanes(IntVec a) { return _mm512_reduce_max_epi32(a.v); }

// {a0*c0 - a1*s0, a0*s0 + a1*c0, ...}: eight adjacent pairs rotated by eight {cos, sin} pairs.
inline Vec rotate_pairs(Vec a, Vec cos_sin) {
  const __m512 cosine = _mm512_moveldup_ps(cos_sin.v);
  const __m512 sine = _mm512_movehdup_ps(cos_sin.v);
  const __m512 swapped = _mm512_permute_ps(a.v, 0xB1);
  return {_mm512_fmaddsub_ps(a.v, cosine, _mm512_mul_ps(swapped, sine))};
}

}  // namespace
}  // namespace tandem::ops::cpu
