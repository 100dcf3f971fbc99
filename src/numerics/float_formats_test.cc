#include "numerics/float_formats.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace tandem::numerics {
namespace {

// The nearest code by search over every finite code, ties to the even code: slow, and obviously
// right.
template <typename Code, typename Widen>
Code nearest(double value, Code largest_finite, Widen widen) {
  Code best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code <= largest_finite; ++code) {
    const double distance =
        std::abs(std::abs(value) - static_cast<double>(widen(static_cast<Code>(code))));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best_distance = distance;
      best = static_cast<Code>(code);
    }
  }
  return best;
}

TEST(F16, EveryCodeSurvivesARoundTrip) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    const float wide = f16_to_f32(half);
    if ((code & 0x7C00U) == 0x7C00U) {
      if ((code & 0x3FFU) != 0) {
        EXPECT_TRUE(std::isnan(wide)) << code;
      } else {
        EXPECT_TRUE(std::isinf(wide)) << code;
      }
      continue;
    }
    EXPECT_EQ(f32_to_f16(wide), half);
    const double exponent = (code >> 10) & 31U;
    const double mantissa = code & 1023U;
    const double expected = exponent == 0
                                ? std::ldexp(mantissa, -24)
                                : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    EXPECT_EQ(std::abs(wide), expected);
  }
}

TEST(F16, NarrowingRoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(f32_to_f16(65504.0F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(1e30F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xFBFF);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::nanf("")))));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> mantissa(1.0F, 2.0F);
  for (int exponent = -27; exponent <= 15; ++exponent) {
    for (int i = 0; i < 2; ++i) {
      const float value = std::ldexp(mantissa(random), exponent);
      EXPECT_EQ(f32_to_f16(value), nearest<uint16_t>(value, 0x7BFF, f16_to_f32)) << value;
    }
    const float tie = (f16_to_f32(0x0401) + f16_to_f32(0x0402)) / 2;
    EXPECT_EQ(f32_to_f16(tie), 0x0402);
  }
}

TEST(Bf16, NarrowingRoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // tie, even below
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // tie, even above
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001U)))));
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float wide = bf16_to_f32(static_cast<uint16_t>(code));
    if (!std::isnan(wide)) EXPECT_EQ(f32_to_bf16(wide), code);
  }
}

TEST(Fp8E4m3, EveryFiniteCodeSurvivesAndNarrowingIsNearestEven) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(fp8_e4m3_to_f32(byte)));
    } else {
      EXPECT_EQ(f32_to_fp8_e4m3(fp8_e4m3_to_f32(byte)), byte);
    }
  }
  EXPECT_EQ(fp8_e4m3_to_f32(0x7E), kFp8E4m3Max);
  EXPECT_EQ(fp8_e4m3_to_f32(0x01), 0x1p-9F);
  EXPECT_EQ(f32_to_fp8_e4m3(1e9F), 0x7E);
  EXPECT_EQ(f32_to_fp8_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
  std::mt19937 random(2);
  std::uniform_real_distribution<float> exponent(-12.0F, 9.5F);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::exp2(exponent(random));
    EXPECT_EQ(f32_to_fp8_e4m3(value), nearest<uint8_t>(value, 0x7E, fp8_e4m3_to_f32)) << value;
  }
}

}  // namespace
}  // namespace tandem::numerics
