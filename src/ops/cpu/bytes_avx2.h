// Vectors of packed codes and the scales of their rows on AVX2: the types that tile.inl.h and
// linear_i8.inl.h are written in. A code vector (64 bytes, 16 rows) is two parts.
#pragma once

#include "ops/cpu/simd_avx2.h"

namespace tandem::ops::cpu {
namespace {

using Bytes = __m256i;
using Floats = __m256;
constexpr int kParts = 2;
constexpr int kPartRows = 8;

inline Bytes load_bytes(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bytes splat_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline Bytes and_bytes(Bytes x, Bytes y) { return _mm256_and_si256(x, y); }
inline Bytes or_bytes(Bytes x, Bytes y) { return _mm256_or_si256(x, y); }
inline Bytes sub_bytes(Bytes x, Bytes y) { return _mm256_sub_epi8(x, y); }
inline Bytes add_bytes(Bytes x, Bytes y) { return _mm256_add_epi8(x, y); }
// Bits may cross from byte to byte: mask them away.
inline Bytes shift_bytes_right(Bytes x, int bits) { return _mm256_srli_epi16(x, bits); }
inline Bytes shift_bytes_left(Bytes x, int bits) { return _mm256_slli_epi16(x, bits); }
inline Bytes load_table(const int8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes look_up(Bytes table, Bytes index) { return _mm256_shuffle_epi8(table, index); }

// Signed byte b of every row's four, as float.
inline Floats byte_to_floats(Bytes x, int b) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * b), 24));
}

inline Floats splat_float(float x) { return _mm256_set1_ps(x); }
inline Floats mul_floats(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
inline Floats fma_floats(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline void store_floats(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline void store_some_floats(float* p, Floats x, int32_t count) {
  if (count >= 8) {
    _mm256_storeu_ps(p, x);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, x);
  for (int32_t lane = 0; lane < count; ++lane) p[lane] = lanes[lane];
}
inline Floats load_some_floats(const float* p, int32_t count) {
  if (count >= 8) return _mm256_loadu_ps(p);
  alignas(32) float lanes[8] = {};
  for (int32_t lane = 0; lane < count; ++lane) lanes[lane] = p[lane];
  return _mm256_load_ps(lanes);
}
inline Floats floats_of_f16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats floats_of_bf16(const std::byte* p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats floats_of_i8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(p)));
}
inline Floats floats_of_u8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(p)));
}
// Four bits of each byte, from bit `shift`.
inline Floats floats_of_u4(const std::byte* p, int shift) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadu_si64(p));
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x, shift), _mm256_set1_epi32(15)));
}

}  // namespace
}  // namespace tandem::ops::cpu
