// Vectors of packed codes and the scales of their rows on AVX-512: the types that tile.inl.h and
// linear_i8.inl.h are written in. A code vector (64 bytes, 16 rows) is one part.
#pragma once

#include "ops/cpu/simd_avx512.h"

namespace tandem::ops::cpu {
namespace {

using Bytes = __m512i;
using Floats = __m512;
constexpr int kParts = 1;
constexpr int kPartRows = 16;

inline Bytes load_bytes(const std::byte* p) { return _mm512_loadu_si512(p); }
inline Bytes splat_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline Bytes and_bytes(Bytes x, Bytes y) { return _mm512_and_si512(x, y); }
inline Bytes or_bytes(Bytes x, Bytes y) { return _mm512_or_si512(x, y); }
inline Bytes sub_bytes(Bytes x, Bytes y) { return _mm512_sub_epi8(x, y); }
inline Bytes add_bytes(Bytes x, Bytes y) { return _mm512_add_epi8(x, y); }
// Bits may cross from byte to byte: mask them away.
inline Bytes shift_bytes_right(Bytes x, int bits) {
  return _mm512_srli_epi16(x, static_cast<unsigned>(bits));
}
inline Bytes shift_bytes_left(Bytes x, int bits) {
  return _mm512_slli_epi16(x, static_cast<unsigned>(bits));
}
inline Bytes load_table(const int8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
inline Bytes look_up(Bytes table, Bytes index) { return _mm512_shuffle_epi8(table, index); }

// Signed byte b of every row's four, as float.
inline Floats byte_to_floats(Bytes x, int b) {
  const __m512i up = _mm512_slli_epi32(x, static_cast<unsigned>(24 - 8 * b));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(up, 24));
}

inline Floats splat_float(float x) { return _mm512_set1_ps(x); }
inline Floats mul_floats(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
inline Floats fma_floats(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
inline void store_floats(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline void store_some_floats(float* p, Floats x, int32_t count) {
  const auto mask = static_cast<__mmask16>((1U << (count < 16 ? count : 16)) - 1);
  _mm512_mask_storeu_ps(p, mask, x);
}
inline Floats floats_of_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats floats_of_bf16(const std::byte* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Floats floats_of_i8(const std::byte* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Floats floats_of_u8(const std::byte* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Four bits of each byte, from bit `shift`.
inline Floats floats_of_u4(const std::byte* p, int shift) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_srli_epi32(x, static_cast<unsigned>(shift)), _mm512_set1_epi32(15)));
}

}  // namespace
}  // namespace tandem::ops::cpu
