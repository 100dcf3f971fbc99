// exp(x) in float32 as 2^n * p(r), n = round(x / ln 2), |r| <= ln(2)/2: a degree-6 polynomial with
// relative error below 2e-7. Constants only, because each instruction set writes the arithmetic
// itself.
#pragma once

namespace tandem::ops::cpu::exp_constants {

inline constexpr float kLowest =
    -87.33654F;  // below this the result is 0 (so masked scores weigh nothing at all)
inline constexpr float kHighest = 88.0F;  // above this the result stays at exp(88)
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2High = 0.693359375F;
inline constexpr float kLn2Low = -2.12194440e-4F;
inline constexpr float kC6 = 1.0F / 720;
inline constexpr float kC5 = 1.0F / 120;
inline constexpr float kC4 = 1.0F / 24;
inline constexpr float kC3 = 1.0F / 6;
inline constexpr float kC2 = 0.5F;

}  // namespace tandem::ops::cpu::exp_constants

namespace tandem::ops::cpu::gelu_constants {

inline constexpr float kCubic = 0.044715F;
inline constexpr float kMinusTwoRoot = -1.595769122F;  // -2 * sqrt(2 / pi)

}  // namespace tandem::ops::cpu::gelu_constants
