// PageTrait: how one value of a page is stored, one specialization per KvDtype. Scalar and
// normative: whoever writes or reads pages another way must produce the same bits.
//
// Where a dtype has a scale, store() divides by it and load() multiplies. kFp8Static's scale
// belongs to the layer and KV head and never changes after load; kFp8Inline's belongs to one token
// and head, is computed from that token alone (scale_for its largest magnitude) and lies after the
// plane's values (PageLayout::plane_bytes). Neither can be changed by a later token.
//
// What is too large becomes the largest value; NaN stays NaN where the codes or the scale can say
// so, and a token with an infinite or NaN value gets NaN for its inline scale: nothing that is not
// finite turns into a plausible number on its way through a page, but for infinities in static FP8
// (and F16), which saturate.
#pragma once

#include <cstdint>
#include <limits>

#include "numerics/float_formats.h"
#include "ops/page_layout.h"

namespace tandem::ops {

inline constexpr float kSmallestPeak = 0x1p-100F;

template <KvDtype kDtype>
struct PageTrait;

template <>
struct PageTrait<KvDtype::kF32> {
  using Element = float;
  static constexpr bool kScaled = false;
  static float load(Element value, float /*scale*/) { return value; }
  static Element store(float value, float /*scale*/) { return value; }
};

template <>
struct PageTrait<KvDtype::kF16> {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static float load(Element value, float /*scale*/) { return numerics::f16_to_f32(value); }
  static Element store(float value, float /*scale*/) { return numerics::f32_to_f16(value); }
};

template <>
struct PageTrait<KvDtype::kBF16> {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static float load(Element value, float /*scale*/) { return numerics::bf16_to_f32(value); }
  static Element store(float value, float /*scale*/) { return numerics::f32_to_bf16(value); }
};

template <>
struct PageTrait<KvDtype::kFp8Static> {
  using Element = uint8_t;
  static constexpr bool kScaled = true;
  static float load(Element value, float scale) { return numerics::fp8_e4m3_to_f32(value) * scale; }
  static Element store(float value, float scale) {
    return numerics::f32_to_fp8_e4m3(value / scale);
  }
};

// The scale of a token whose largest magnitude is `peak`, for codes up to `largest`. Magnitudes too
// small to divide by become zeros; what is not finite gives NaN.
inline float inline_scale(float peak, float largest) {
  if (!(peak <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return peak >= kSmallestPeak ? peak / largest : 1.0F;
}

template <>
struct PageTrait<KvDtype::kFp8Inline> : PageTrait<KvDtype::kFp8Static> {
  static float scale_for(float peak) { return inline_scale(peak, numerics::kFp8E4m3Max); }
};

template <>
struct PageTrait<KvDtype::kInt8Inline> {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  static float load(Element value, float scale) { return static_cast<float>(value) * scale; }
  static Element store(float value, float scale) {
    float quotient = value / scale;
    if (!(quotient >= -127)) quotient = -127;  // NaN too: its token's scale is NaN
    if (quotient > 127) quotient = 127;
    // Adding and taking off 1.5 * 2^23 rounds to nearest even.
    return static_cast<Element>((quotient + 0x1.8p23F) - 0x1.8p23F);
  }
  static float scale_for(float peak) { return inline_scale(peak, 127.0F); }
};

}  // namespace tandem::ops
