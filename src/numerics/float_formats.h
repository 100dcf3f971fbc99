// Scalar conversions between float32 and the narrow floating-point formats that weights and KV
// pages use.
//
// Widening is exact. Narrowing rounds to nearest, ties to even. F16 and e4m3 saturate: anything
// beyond the largest finite value, infinities included, becomes that value, because one infinity in
// a KV page poisons every later token. BF16 has float32's range and keeps infinities. NaN stays NaN
// everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace tandem::numerics {

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t payload = static_cast<uint32_t>(bits & 0x7FFFU) << 13;
  if ((bits & 0x7C00U) == 0x7C00U)
    return std::bit_cast<float>(sign | 0x70000000U | payload | 0x0F800000U);
  // 2^112 moves the exponent bias from 15 to 127 and normalizes subnormals on the way.
  const float magnitude = std::bit_cast<float>(payload) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7E00U;
  if (magnitude >= 0x477FE000U) return sign | 0x7BFFU;  // 65504 and beyond
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 puts the result's last place (2^-24) at the sum's last place, so the
    // adder rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  const uint32_t half = (rounded - 0x38000000U) >> 13;
  return static_cast<uint16_t>(sign | (half > 0x7BFFU ? 0x7BFFU : half));
}

// FP8 e4m3 ("fn"): no infinities, 0x7F and 0xFF are NaN, largest finite value 448.
inline constexpr float kFp8E4m3Max = 448.0F;

inline float fp8_e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  if ((bits & 0x7FU) == 0x7FU) return std::bit_cast<float>(sign | 0x7FC00000U);
  const float magnitude =
      std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7FU) << 20) * 0x1p120F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint8_t f32_to_fp8_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7FU;
  if (magnitude >= 0x43E00000U) return sign | 0x7EU;  // 448 and beyond
  if (magnitude < 0x3C800000U) {
    // Below 2^-6: the last place is 2^-9, which is the last place of sums near 2^14.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000U));
  }
  const uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
  const uint32_t code = (rounded - 0x3C000000U) >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7EU ? 0x7EU : code));
}

}  // namespace tandem::numerics
