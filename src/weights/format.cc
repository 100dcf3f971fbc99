#include "weights/format.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "numerics/float_formats.h"

namespace tandem::weights {
namespace {

using numerics::bf16_to_f32;
using numerics::f16_to_f32;
using numerics::f32_to_bf16;
using numerics::f32_to_f16;

// Rows in a mapped file need not be aligned for their block type, so blocks are copied out.
template <typename Block>
Block load_block(std::span<const std::byte> row, size_t index) {
  Block block;
  std::memcpy(&block, row.data() + index * sizeof(Block), sizeof(Block));
  return block;
}

template <typename Block>
void store_block(std::span<std::byte> row, size_t index, const Block& block) {
  std::memcpy(row.data() + index * sizeof(Block), &block, sizeof(Block));
}

void dequantize(const BlockQ80& block, float* out) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.q[i]);
}

void dequantize(const BlockQ40& block, float* out) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block.q[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block.q[i] >> 4) - 8);
  }
}

void dequantize(const BlockQ41& block, float* out) {
  const float d = f16_to_f32(block.d);
  const float m = f16_to_f32(block.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block.q[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block.q[i] >> 4) + m;
  }
}

void dequantize(const BlockQ6K& block, float* out) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const int8_t sub_scale = block.scale[i / 16];
    const float scale = d * static_cast<float>(sub_scale);
    out[i] = scale * static_cast<float>(q6k_code(block, i) - 32);
  }
}

template <typename Block>
void dequantize_blocks(std::span<const std::byte> row, std::span<float> out, size_t values) {
  for (size_t i = 0; i < out.size() / values; ++i)
    dequantize(load_block<Block>(row, i), out.data() + i * values);
}

int clamp_code(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lrintf(value)), low, high);
}

float peak_of(const float* values, int count) {
  float peak = 0;
  for (int i = 0; i < count; ++i) peak = std::max(peak, std::abs(values[i]));
  return peak;
}

float inverse(float value) { return value != 0 ? 1.0F / value : 0.0F; }

BlockQ80 quantize_q8_0(const float* values) {
  BlockQ80 block;
  block.d = f32_to_f16(peak_of(values, 32) / 127);
  const float scale = inverse(f16_to_f32(block.d));
  for (int i = 0; i < 32; ++i)
    block.q[i] = static_cast<int8_t>(clamp_code(values[i] * scale, -127, 127));
  return block;
}

BlockQ40 quantize_q4_0(const float* values) {
  BlockQ40 block;
  block.d = f32_to_f16(peak_of(values, 32) / 7);
  const float scale = inverse(f16_to_f32(block.d));
  for (int i = 0; i < 16; ++i) {
    const int low = clamp_code(values[i] * scale, -8, 7) + 8;
    const int high = clamp_code(values[i + 16] * scale, -8, 7) + 8;
    block.q[i] = static_cast<uint8_t>(low | (high << 4));
  }
  return block;
}

BlockQ41 quantize_q4_1(const float* values) {
  BlockQ41 block;
  const auto [low, high] = std::minmax_element(values, values + 32);
  block.d = f32_to_f16((*high - *low) / 15);
  block.m = f32_to_f16(*low);
  const float scale = inverse(f16_to_f32(block.d));
  const float base = f16_to_f32(block.m);
  for (int i = 0; i < 16; ++i) {
    const int a = clamp_code((values[i] - base) * scale, 0, 15);
    const int b = clamp_code((values[i + 16] - base) * scale, 0, 15);
    block.q[i] = static_cast<uint8_t>(a | (b << 4));
  }
  return block;
}

BlockQ6K quantize_q6_k(const float* values) {
  BlockQ6K block = {};
  const float peak = peak_of(values, 256);
  block.d = f32_to_f16(peak / (31 * 127));
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    if (i % 16 == 0) {
      const float wanted = peak_of(values + i, 16) / 31;
      block.scale[i / 16] = static_cast<int8_t>(clamp_code(wanted * inverse(d), 0, 127));
    }
    const int8_t sub_scale = block.scale[i / 16];
    const float scale = d * static_cast<float>(sub_scale);
    const int code = clamp_code(values[i] * inverse(scale), -32, 31) + 32;
    const int half = i / 128;
    const int quarter = (i / 32) % 4;
    const int j = i % 32;
    block.low[64 * half + j + 32 * (quarter & 1)] |=
        static_cast<uint8_t>((code & 15) << (quarter < 2 ? 0 : 4));
    block.high[32 * half + j] |= static_cast<uint8_t>((code >> 4) << (2 * quarter));
  }
  return block;
}

template <typename Block, typename Encode>
void quantize_blocks(std::span<const float> values, std::span<std::byte> row, size_t count,
                     Encode encode) {
  for (size_t i = 0; i < values.size() / count; ++i) {
    const Block block = encode(values.data() + i * count);
    store_block(row, i, block);
  }
}

}  // namespace

std::optional<Format> format_from_gguf(uint32_t type_id) {
  for (const Format format : kAllFormats) {
    if (static_cast<uint32_t>(format) == type_id) return format;
  }
  return std::nullopt;
}

std::string_view format_name(Format format) {
  switch (format) {
    case Format::kF32:
      return "F32";
    case Format::kF16:
      return "F16";
    case Format::kBF16:
      return "BF16";
    case Format::kQ80:
      return "Q8_0";
    case Format::kQ40:
      return "Q4_0";
    case Format::kQ41:
      return "Q4_1";
    case Format::kQ6K:
      return "Q6_K";
  }
  return "?";
}

int32_t block_values(Format format) {
  switch (format) {
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      return 1;
    case Format::kQ80:
    case Format::kQ40:
    case Format::kQ41:
      return 32;
    case Format::kQ6K:
      return 256;
  }
  return 1;
}

int32_t block_bytes(Format format) {
  switch (format) {
    case Format::kF32:
      return 4;
    case Format::kF16:
    case Format::kBF16:
      return 2;
    case Format::kQ80:
      return sizeof(BlockQ80);
    case Format::kQ40:
      return sizeof(BlockQ40);
    case Format::kQ41:
      return sizeof(BlockQ41);
    case Format::kQ6K:
      return sizeof(BlockQ6K);
  }
  return 1;
}

void dequantize_row(Format format, std::span<const std::byte> row, std::span<float> out) {
  assert(row.size() == row_bytes(format, static_cast<int64_t>(out.size())));
  switch (format) {
    case Format::kF32:
      std::memcpy(out.data(), row.data(), row.size());
      break;
    case Format::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = f16_to_f32(load_block<uint16_t>(row, i));
      break;
    case Format::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_f32(load_block<uint16_t>(row, i));
      break;
    case Format::kQ80:
      dequantize_blocks<BlockQ80>(row, out, 32);
      break;
    case Format::kQ40:
      dequantize_blocks<BlockQ40>(row, out, 32);
      break;
    case Format::kQ41:
      dequantize_blocks<BlockQ41>(row, out, 32);
      break;
    case Format::kQ6K:
      dequantize_blocks<BlockQ6K>(row, out, 256);
      break;
  }
}

void quantize_row(Format format, std::span<const float> values, std::span<std::byte> row) {
  assert(row.size() == row_bytes(format, static_cast<int64_t>(values.size())));
  switch (format) {
    case Format::kF32:
      std::memcpy(row.data(), values.data(), row.size());
      break;
    case Format::kF16:
      for (size_t i = 0; i < values.size(); ++i) store_block(row, i, f32_to_f16(values[i]));
      break;
    case Format::kBF16:
      for (size_t i = 0; i < values.size(); ++i) store_block(row, i, f32_to_bf16(values[i]));
      break;
    case Format::kQ80:
      quantize_blocks<BlockQ80>(values, row, 32, quantize_q8_0);
      break;
    case Format::kQ40:
      quantize_blocks<BlockQ40>(values, row, 32, quantize_q4_0);
      break;
    case Format::kQ41:
      quantize_blocks<BlockQ41>(values, row, 32, quantize_q4_1);
      break;
    case Format::kQ6K:
      quantize_blocks<BlockQ6K>(values, row, 256, quantize_q6_k);
      break;
  }
}

}  // namespace tandem::weights
