// PageTrait: how one value of a page is stored, one specialization per KvDtype. Scalar and
// normative: whoever writes or reads pages another way must produce the same bits.
//
// Where a dtype has a scale, store() divides by it and load() multiplies. kFp8Static's scale
// belongs to the layer and KV head and never changes after load; kFp8Inline's belongs to one token
// and head, is computed from that token alone and lies after the plane's values
// (PageLayout::plane_bytes). Neither can be changed by a later token.
#pragma once

#include <cstdint>

#include "numerics/float_formats.h"
#include "ops/page_layout.h"

namespace tandem::ops {

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

template <>
struct PageTrait<KvDtype::kFp8Inline> : PageTrait<KvDtype::kFp8Static> {
  // The scale of a token whose largest magnitude is `peak`.
  static float scale_for(float peak) { return peak > 0 ? peak / numerics::kFp8E4m3Max : 1.0F; }
};

}  // namespace tandem::ops
