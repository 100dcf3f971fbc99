#include <immintrin.h>

#include "ops/cpu/probes.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kChains = 12;

float float_multiply_adds(int64_t rounds) {
  __m512 acc[kChains];
#pragma clang loop unroll(full)
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  __m512 factor = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(factor));
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_fmadd_ps(acc[j], factor, factor);
  }
  __m512 sum = acc[0];
#pragma clang loop unroll(full)
  for (int j = 1; j < kChains; ++j) sum = _mm512_add_ps(sum, acc[j]);
  return _mm512_cvtss_f32(sum);
}

int32_t int8_dots(int64_t rounds) {
  __m512i acc[kChains];
#pragma clang loop unroll(full)
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_epi32(j);
  __m512i codes = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(codes));
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_dpbusd_epi32(acc[j], codes, codes);
  }
  __m512i sum = acc[0];
#pragma clang loop unroll(full)
  for (int j = 1; j < kChains; ++j) sum = _mm512_add_epi32(sum, acc[j]);
  return _mm_cvtsi128_si32(_mm512_castsi512_si128(sum));
}

float bf16_dots(int64_t rounds) {
  __m512 acc[kChains];
#pragma clang loop unroll(full)
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_set1_ps(static_cast<float>(j));
  __m512i ones = _mm512_set1_epi32(0x3F803F80);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(ones));
    const auto pairs = reinterpret_cast<__m512bh>(ones);
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_dpbf16_ps(acc[j], pairs, pairs);
  }
  __m512 sum = acc[0];
#pragma clang loop unroll(full)
  for (int j = 1; j < kChains; ++j) sum = _mm512_add_ps(sum, acc[j]);
  return _mm512_cvtss_f32(sum);
}

uint64_t read(const std::byte* data, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 256) {
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j)
      sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(data + i + j * 64));
  }
  const __m512i all =
      _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(all)));
}

}  // namespace

Probes probes_avx512() {
  return {float_multiply_adds, 32.0 * kChains, int8_dots, 128.0 * kChains,
          bf16_dots,           64.0 * kChains, read};
}

}  // namespace tandem::ops::cpu
