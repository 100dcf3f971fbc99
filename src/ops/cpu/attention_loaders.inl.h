// How attention reads the elements of a page: one loader of sixteen values and one widening of a
// single value per dtype. Included after the simd header.
#pragma once

#include "ops/cpu/fma_tile.inl.h"

namespace tandem::ops::cpu {
namespace {

// How the elements of a page are read: Type's values times kFactor are PageTrait's without a scale.
template <typename Element>
struct LoaderFor;
template <>
struct LoaderFor<float> {
  using Type = LoadF32;
  static constexpr float kFactor = 1;
};
struct F16 {
  uint16_t bits;
};
template <>
struct LoaderFor<F16> {
  using Type = LoadF16;
  static constexpr float kFactor = 1;
};
struct BF16 {
  uint16_t bits;
};
template <>
struct LoaderFor<BF16> {
  using Type = LoadBF16;
  static constexpr float kFactor = 1;
};
struct E4m3 {
  uint8_t bits;
};
template <>
struct LoaderFor<E4m3> {
  using Type = LoadE4m3;
  static constexpr float kFactor = 256;
};
struct I8 {
  int8_t bits;
};
template <>
struct LoaderFor<I8> {
  using Type = LoadI8;
  static constexpr float kFactor = 1;
};

inline float widen(float x) { return x; }
inline float widen(I8 x) { return x.bits; }
inline float widen(E4m3 x) {
  if ((x.bits & 0x7F) == 0x7F) return __builtin_nanf("");
  const int bits = (x.bits & 0x80) << 8 | (x.bits & 0x7F) << 7;
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
inline float widen(BF16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
inline float widen(F16 x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits))); }

// Whether `count` stored values can come through the loader: all but e4m3's NaN, which it reads as
// a number. (Beside inline scales there is no need to look: a token with a NaN has a NaN scale.)
template <typename Element, bool kInline>
bool loadable(const Element* values, size_t count) {
  if constexpr (__is_same(Element, E4m3) && !kInline) {
    return !any_nan_e4m3(reinterpret_cast<const uint8_t*>(values), count);
  }
  return true;
}

}  // namespace
}  // namespace tandem::ops::cpu
