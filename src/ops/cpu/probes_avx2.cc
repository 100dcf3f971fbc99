#include <immintrin.h>

#include "ops/cpu/probes.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kChains = 10;

float float_multiply_adds(int64_t rounds) {
  __m256 acc[kChains];
#pragma clang loop unroll(full)
  for (int j = 0; j < kChains; ++j) acc[j] = _mm256_set1_ps(static_cast<float>(j));
  __m256 factor = _mm256_set1_ps(0.5F);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(factor));
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) acc[j] = _mm256_fmadd_ps(acc[j], factor, factor);
  }
  __m256 sum = acc[0];
#pragma clang loop unroll(full)
  for (int j = 1; j < kChains; ++j) sum = _mm256_add_ps(sum, acc[j]);
  return _mm256_cvtss_f32(sum);
}

// vpmaddubsw and vpaddw, the Q4 kernel's inner pair; 64 operations each.
int32_t int8_dots(int64_t rounds) {
  __m256i acc[kChains];
#pragma clang loop unroll(full)
  for (int j = 0; j < kChains; ++j) acc[j] = _mm256_set1_epi16(static_cast<int16_t>(j));
  __m256i codes = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) {
      asm volatile("" : "+x"(codes));
      acc[j] = _mm256_add_epi16(acc[j], _mm256_maddubs_epi16(codes, codes));
    }
  }
  __m256i sum = acc[0];
#pragma clang loop unroll(full)
  for (int j = 1; j < kChains; ++j) sum = _mm256_add_epi16(sum, acc[j]);
  return _mm256_extract_epi32(sum, 0);
}

uint64_t read(const std::byte* data, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 128) {
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j) {
      sum[j] = _mm256_xor_si256(
          sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + j * 32)));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

}  // namespace

Probes probes_avx2() {
  return {float_multiply_adds, 16.0 * kChains, int8_dots, 64.0 * kChains, nullptr, 0, read};
}

}  // namespace tandem::ops::cpu
