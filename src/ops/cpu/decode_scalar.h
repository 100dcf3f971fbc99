// Reads packed codes one value at a time: the definition of what a packed matrix means, for the
// scalar kernels and for tests.
#pragma once

#include <cstring>

#include "numerics/float_formats.h"
#include "ops/packed_matrix.h"

namespace tandem::ops::cpu {

template <typename T>
T packed_load(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

inline float packed_f16(const std::byte* data, size_t index) {
  return numerics::f16_to_f32(packed_load<uint16_t>(data, index));
}

// One block of a group.
struct PackedBlock {
  const std::byte* scales;
  const std::byte* codes;
};
inline PackedBlock packed_block(const PackedView& view, int32_t group, size_t block) {
  const ChunkShape shape = chunk_shape(view.format);
  const std::byte* chunk = view.group(group) + block / shape.blocks * shape.bytes;
  const size_t inside = block % shape.blocks;
  return {chunk + inside * shape.scale_bytes,
          chunk + shape.blocks * shape.scale_bytes + inside * shape.code_bytes};
}

// Unsigned code of column k (0..31) of row `lane`.
inline int packed_byte_code(const PackedBlock& block, int k, int lane) {
  return packed_load<uint8_t>(block.codes, (k / 4) * 64 + lane * 4 + k % 4);
}
inline int packed_nibble_code(const PackedBlock& block, int k, int lane) {
  const int byte = packed_byte_code(block, k % 16, lane);
  return k < 16 ? byte & 15 : byte >> 4;
}
// Six-bit code of column k (0..255).
inline int packed_q6k_code(const PackedBlock& block, int k, int lane) {
  const std::byte* low = block.codes + (k / 16) * size_t{192};
  const int j = k % 16;
  return ((packed_load<uint8_t>(low, (j % 8) * 16 + lane) >> (j / 8 * 4)) & 15) |
         ((packed_load<uint8_t>(low + 128, (j % 4) * 16 + lane) >> (j / 4 * 2) & 3) << 4);
}

// The weight at (row `lane` of group `group`, column `k`), with the same rounding as
// weights::dequantize_row.
inline float packed_weight(const PackedView& view, int32_t group, int lane, int32_t k) {
  using weights::Format;
  const size_t plain = static_cast<size_t>(k) * 16 + lane;
  switch (view.format) {
    case Format::kF32:
      return packed_load<float>(view.group(group), plain);
    case Format::kF16:
      return packed_f16(view.group(group), plain);
    case Format::kBF16:
      return numerics::bf16_to_f32(packed_load<uint16_t>(view.group(group), plain));
    default:
      break;
  }
  const int values = view.format == Format::kQ6K ? 256 : 32;
  const PackedBlock block = packed_block(view, group, k / values);
  const float d = packed_f16(block.scales, lane);
  const int inside = k % values;
  switch (view.format) {
    case Format::kQ80:
      return d * static_cast<float>(packed_byte_code(block, inside, lane) - 128);
    case Format::kQ40:
      return d * static_cast<float>(packed_nibble_code(block, inside, lane) - 8);
    case Format::kQ41:
      return d * static_cast<float>(packed_nibble_code(block, inside, lane)) +
             packed_f16(block.scales, 16 + lane);
    default:
      return d *
             static_cast<float>(packed_load<int8_t>(block.scales, 32 + inside / 16 * 16 + lane)) *
             static_cast<float>(packed_q6k_code(block, inside, lane) - 32);
  }
}

}  // namespace tandem::ops::cpu
