// Conversions between float32 and what pages store, sixteen at a time; the same bits as the scalar
// ones (PageTrait). F16 is nobody's default for pages and takes the scalar way. Included after the
// simd header.
//
// Operations per sixteen values: e4m3 out about 16 (two roundings, one of them for subnormals, and
// a division), e4m3 in 6, int8 3 to 6, BF16 2 to 6. Nothing overflows: magnitudes are compared and
// rounded as integers below 2^31, and NaN, the one that could pass it, is replaced at the end.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/scalar.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kInfinityBits = 0x7F800000;

inline IntVec magnitude_of(IntVec bits) { return bit_and(bits, splat_i32(0x7FFFFFFF)); }

// numerics::f32_to_fp8_e4m3, the code as a signed byte.
inline IntVec to_e4m3(Vec x) {
  const IntVec bits = bits_of(x);
  const IntVec magnitude = magnitude_of(bits);
  const IntVec odd = bit_and(shift_right(magnitude, 20), splat_i32(1));
  // Rounded to three bits of mantissa and rebiased. (NaN may wrap around; it is replaced below.)
  const IntVec rounded = add_i32(add_i32(magnitude, splat_i32(0x7FFFF)), odd);
  const IntVec normal = shift_right(sub_i32(rounded, splat_i32(0x3C000000)), 20);
  const IntVec shifted = bits_of(add(float_of_bits(magnitude), splat(0x1p14F)));
  const IntVec subnormal = sub_i32(shifted, splat_i32(0x46800000));
  IntVec code = select_less(magnitude, splat_i32(0x3C800000), subnormal, normal);
  code = select_less(magnitude, splat_i32(0x43E00000), min_i32(code, splat_i32(0x7E)),
                     splat_i32(0x7E));
  code = select_less(splat_i32(kInfinityBits), magnitude, splat_i32(0x7F), code);
  return select_less(bits, splat_i32(0), bit_or(code, splat_i32(-128)), code);
}

inline Vec from_e4m3(const uint8_t* p) {
  const IntVec codes = widen_u8(p);
  const IntVec payload = bit_and(codes, splat_i32(0x7F));
  const IntVec sign = shift_left(bit_and(codes, splat_i32(0x80)), 24);
  const IntVec value = bits_of(mul(load_e4m3(p), splat(256.0F)));
  return float_of_bits(
      select_less(splat_i32(0x7E), payload, bit_or(sign, splat_i32(0x7FC00000)), value));
}

// numerics::f32_to_bf16.
inline IntVec to_bf16(Vec x) {
  const IntVec bits = bits_of(x);
  const IntVec high = shift_right(bits, 16);
  const IntVec odd = bit_and(high, splat_i32(1));
  const IntVec rounded = shift_right(add_i32(add_i32(bits, splat_i32(0x7FFF)), odd), 16);
  return select_less(splat_i32(kInfinityBits), magnitude_of(bits), bit_or(high, splat_i32(0x40)),
                     rounded);
}

inline Vec scale_at(const StoredValues& values, int32_t i) {
  return values.scale_step == 0 ? splat(values.scales[0]) : load(values.scales + i);
}

inline Vec load_sixteen(const StoredValues& from, int32_t i, const std::byte* values) {
  switch (from.dtype) {
    case KvDtype::kBF16:
      return load_bf16(reinterpret_cast<const uint16_t*>(values));
    case KvDtype::kFp8Static:
    case KvDtype::kFp8Inline:
      return mul(from_e4m3(reinterpret_cast<const uint8_t*>(values)), scale_at(from, i));
    case KvDtype::kInt8Inline:
      return mul(to_float(widen_i8(values)), scale_at(from, i));
    default:
      return load(reinterpret_cast<const float*>(values));
  }
}

inline void store_sixteen(const StoredValues& to, int32_t i, Vec x, std::byte* out) {
  switch (to.dtype) {
    case KvDtype::kBF16:
      store_u16(reinterpret_cast<uint16_t*>(out), to_bf16(x));
      break;
    case KvDtype::kFp8Static:
    case KvDtype::kFp8Inline:
      store_i8(reinterpret_cast<int8_t*>(out), to_e4m3(div(x, scale_at(to, i))));
      break;
    case KvDtype::kInt8Inline: {
      // max's second operand wins over NaN.
      const Vec quotient = min(max(div(x, scale_at(to, i)), splat(-127.0F)), splat(127.0F));
      store_i8(reinterpret_cast<int8_t*>(out), to_int(quotient));
      break;
    }
    default:
      store(reinterpret_cast<float*>(out), x);
  }
}

constexpr size_t element_bytes(KvDtype dtype) {
  return dtype == KvDtype::kF32 ? 4 : dtype == KvDtype::kBF16 ? 2 : 1;
}

// The scales of the last values, padded; `lanes` is where they lie when each has its own.
inline StoredValues tail_of(const StoredValues& values, int32_t done, float* lanes) {
  StoredValues tail = values;
  tail.count = values.count - done;
  if (values.scales == nullptr || values.scale_step == 0) return tail;
  for (int32_t i = 0; i < 16; ++i) lanes[i] = i < tail.count ? values.scales[done + i] : 1.0F;
  tail.scales = lanes;
  return tail;
}

inline void load_values(const StoredValues& from, const std::byte* values, float* out) {
  if (from.dtype == KvDtype::kF16) return load_values_scalar(from, values, out);
  const size_t size = element_bytes(from.dtype);
  int32_t i = 0;
  for (; i + 16 <= from.count; i += 16) store(out + i, load_sixteen(from, i, values + i * size));
  if (i == from.count) return;
  alignas(64) float lanes[16];
  alignas(64) std::byte bytes[64] = {};
  const StoredValues tail = tail_of(from, i, lanes);
  __builtin_memcpy(bytes, values + i * size, static_cast<size_t>(tail.count) * size);
  alignas(64) float widened[16];
  store(widened, load_sixteen(tail, 0, bytes));
  for (int32_t lane = 0; lane < tail.count; ++lane) out[i + lane] = widened[lane];
}

inline void store_values(const StoredValues& to, const float* x, std::byte* out) {
  if (to.dtype == KvDtype::kF16) return store_values_scalar(to, x, out);
  const size_t size = element_bytes(to.dtype);
  int32_t i = 0;
  for (; i + 16 <= to.count; i += 16) store_sixteen(to, i, load(x + i), out + i * size);
  if (i == to.count) return;
  alignas(64) float lanes[16];
  alignas(64) std::byte bytes[64];
  const StoredValues tail = tail_of(to, i, lanes);
  store_sixteen(tail, 0, load_partial(x + i, tail.count), bytes);
  __builtin_memcpy(out + i * size, bytes, static_cast<size_t>(tail.count) * size);
}

inline void raise_peaks(const float* x, int32_t count, float* in_out) {
  int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const IntVec peaks = max_i32(bits_of(load(in_out + i)), magnitude_of(bits_of(load(x + i))));
    store(in_out + i, float_of_bits(peaks));
  }
  if (i < count) raise_peaks_scalar(x + i, count - i, in_out + i);
}

}  // namespace
}  // namespace tandem::ops::cpu
