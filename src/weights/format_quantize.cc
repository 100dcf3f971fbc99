// The simple encoder behind quantize_row(): per block the smallest scale that reaches every value,
// then rounding to nearest.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "numerics/float_formats.h"
#include "weights/format.h"

namespace tandem::weights {
namespace {

using numerics::f16_to_f32;
using numerics::f32_to_bf16;
using numerics::f32_to_f16;

int clamp_code(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lrintf(value)), low, high);
}

float peak_of(const float* values, int count) {
  float peak = 0;
  for (int i = 0; i < count; ++i) peak = std::max(peak, std::abs(values[i]));
  return peak;
}

float inverse(float value) { return value != 0 ? 1.0F / value : 0.0F; }

// The largest multiple of the scale that a code reaches on both sides of zero.
int reach(const FormatShape& shape) {
  if (shape.table == nullptr) return shape.zero - 1;
  return *std::max_element(shape.table, shape.table + 16);
}

uint8_t nearest_code(const FormatShape& shape, float value) {
  if (shape.table == nullptr) {
    return static_cast<uint8_t>(clamp_code(value, -shape.zero, shape.zero - 1) + shape.zero);
  }
  const auto distance = [&](int code) {
    return std::abs(static_cast<float>(shape.table[code]) - value);
  };
  int best = 0;
  for (int code = 1; code < 16; ++code) {
    if (distance(code) < distance(best)) best = code;
  }
  return static_cast<uint8_t>(best);
}

// Rounded to the power of two above.
uint16_t power_of_two_scale(float wanted) {
  if (!(wanted > 0)) return f32_to_bf16(0x1p-126F);
  const int exponent = static_cast<int>(std::ceil(std::log2(wanted)));
  return f32_to_bf16(std::ldexp(1.0F, std::clamp(exponent, -126, 127)));
}

void quantize_symmetric(Format format, const float* values, UnpackedBlock& block) {
  const FormatShape shape = format_shape(format);
  const float peak = peak_of(values, shape.values);
  const int most = shape.has_sub_scales() ? shape.sub_scale_high : 1;
  const float wanted = peak / static_cast<float>(reach(shape) * most);
  block.d = format == Format::kMXFP4 ? power_of_two_scale(wanted) : f32_to_f16(wanted);
  const float d = block_scale(format, block.d);
  for (int i = 0; i < shape.values; ++i) {
    const int j = i / shape.sub_values;
    if (shape.has_sub_scales() && i % shape.sub_values == 0) {
      const float sub = peak_of(values + i, shape.sub_values) / static_cast<float>(reach(shape));
      block.sub_scale[j] = static_cast<int8_t>(clamp_code(sub * inverse(d), 0, most));
    }
    const float scale = shape.has_sub_scales() ? d * static_cast<float>(block.sub_scale[j]) : d;
    block.code[i] = nearest_code(shape, values[i] * inverse(scale));
  }
}

void quantize_with_minimum(Format format, const float* values, UnpackedBlock& block) {
  const FormatShape shape = format_shape(format);
  const int top = (1 << shape.bits) - 1;
  const auto [low, high] = std::minmax_element(values, values + 32);
  block.d = f32_to_f16((*high - *low) / static_cast<float>(top));
  block.m = f32_to_f16(*low);
  const float scale = inverse(f16_to_f32(block.d));
  const float base = f16_to_f32(block.m);
  for (int i = 0; i < 32; ++i)
    block.code[i] = static_cast<uint8_t>(clamp_code((values[i] - base) * scale, 0, top));
}

void quantize_with_sub_minimums(Format format, const float* values, UnpackedBlock& block) {
  const FormatShape shape = format_shape(format);
  const int top = (1 << shape.bits) - 1;
  const int subs = shape.values / shape.sub_values;
  float scales[16];
  float minimums[16];
  for (int j = 0; j < subs; ++j) {
    const float* sub = values + static_cast<ptrdiff_t>(j) * shape.sub_values;
    const auto [low, high] = std::minmax_element(sub, sub + shape.sub_values);
    minimums[j] = std::max(0.0F, -*low);  // stored as what is subtracted, so never below 0
    scales[j] = std::max(0.0F, *high + minimums[j]) / static_cast<float>(top);
  }
  const auto most = static_cast<float>(shape.sub_scale_high);
  block.d = f32_to_f16(*std::max_element(scales, scales + subs) / most);
  block.m = f32_to_f16(*std::max_element(minimums, minimums + subs) / most);
  const float d = f16_to_f32(block.d);
  const float m = f16_to_f32(block.m);
  for (int j = 0; j < subs; ++j) {
    const int high = shape.sub_scale_high;
    block.sub_scale[j] = static_cast<int8_t>(clamp_code(scales[j] * inverse(d), 0, high));
    block.sub_minimum[j] = static_cast<uint8_t>(clamp_code(minimums[j] * inverse(m), 0, high));
    const float scale = inverse(d * static_cast<float>(block.sub_scale[j]));
    const float base = m * static_cast<float>(block.sub_minimum[j]);
    for (int i = j * shape.sub_values; i < (j + 1) * shape.sub_values; ++i)
      block.code[i] = static_cast<uint8_t>(clamp_code((values[i] + base) * scale, 0, top));
  }
}

void store(std::span<std::byte> row, size_t index, uint16_t value) {
  std::memcpy(row.data() + index * sizeof(value), &value, sizeof(value));
}

}  // namespace

void quantize_row(Format format, std::span<const float> values, std::span<std::byte> row) {
  assert(row.size() == row_bytes(format, static_cast<int64_t>(values.size())));
  const FormatShape shape = format_shape(format);
  if (format == Format::kF32) std::memcpy(row.data(), values.data(), row.size());
  for (size_t i = 0; format == Format::kF16 && i < values.size(); ++i)
    store(row, i, f32_to_f16(values[i]));
  for (size_t i = 0; format == Format::kBF16 && i < values.size(); ++i)
    store(row, i, f32_to_bf16(values[i]));
  if (!shape.quantized()) return;
  for (size_t i = 0; i < values.size() / shape.values; ++i) {
    UnpackedBlock block;
    const float* source = values.data() + i * shape.values;
    if (!shape.has_minimum) {
      quantize_symmetric(format, source, block);
    } else if (shape.has_sub_scales()) {
      quantize_with_sub_minimums(format, source, block);
    } else {
      quantize_with_minimum(format, source, block);
    }
    pack_block(format, block, row.data() + i * shape.bytes);
  }
}

}  // namespace tandem::weights
