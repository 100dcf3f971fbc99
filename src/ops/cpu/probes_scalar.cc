#include <cstring>

#include "ops/cpu/probes.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kLanes = 32;

// Makes the compiler forget what it knows of `value`.
void forget(float& value) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

float float_multiply_adds(int64_t rounds) {
  float acc[kLanes] = {};
  float factor = 1.0F;
  for (int64_t i = 0; i < rounds; ++i) {
    forget(factor);
    for (float& lane : acc) lane += factor * 0.5F;
  }
  float sum = 0;
  for (const float lane : acc) sum += lane;
  return sum;
}

int32_t int8_dots(int64_t rounds) {
  int32_t acc[kLanes] = {};
  int16_t factor = 3;
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+r"(factor));
    for (int lane = 0; lane < kLanes; ++lane) acc[lane] += static_cast<int16_t>(lane) * factor;
  }
  int32_t sum = 0;
  for (const int32_t lane : acc) sum += lane;
  return sum;
}

uint64_t read(const std::byte* data, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, data + i, 64);
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

Probes probes_scalar() {
  return {float_multiply_adds, 2.0 * kLanes, int8_dots, 2.0 * kLanes, nullptr, 0, read};
}

}  // namespace tandem::ops::cpu
