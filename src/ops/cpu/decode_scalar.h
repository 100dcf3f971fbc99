// Reads packed weights one value at a time: the definition of what a packed matrix means, for the
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

// 32 columns of a group of a quantized matrix.
struct PackedTile {
  weights::Format format;
  weights::FormatShape shape;
  ChunkShape chunk;
  const std::byte* header;
  const std::byte* codes;
  int32_t index;  // in its chunk

  PackedTile(const PackedView& view, int32_t group, int32_t tile)
      : format(view.format),
        shape(weights::format_shape(view.format)),
        chunk(chunk_shape(view.format)),
        header(view.group(group) + static_cast<size_t>(tile / chunk.tiles) * chunk.bytes),
        codes(header + chunk.header_bytes +
              static_cast<size_t>(tile % chunk.tiles) * chunk.tile_bytes),
        index(tile % chunk.tiles) {}

  // Signed code of column k (0..31) of row `lane`: the zero subtracted, or the table's entry.
  int code(int k, int lane) const {
    const int low = plane(codes, chunk.low_bits, k, lane);
    const int high =
        chunk.high_bits == 0 ? 0 : plane(codes + chunk.low_bits * 64, chunk.high_bits, k, lane);
    const int value = low | high << chunk.low_bits;
    return shape.table != nullptr ? shape.table[value] : value - shape.zero;
  }
  // Scale of sub-tile `sub` of row `lane`, and what is added.
  float scale(int sub, int lane) const {
    const float d = weights::block_scale(format, packed_load<uint16_t>(scales(), lane));
    if (!shape.has_sub_scales()) return d;
    const int byte = sub_byte(chunk.sub_scale_offset, sub, lane);
    return d * static_cast<float>(nibbles() ? byte & 15 : static_cast<int8_t>(byte));
  }
  float minimum(int sub, int lane) const {
    if (!shape.has_minimum) return 0;
    const float m = packed_f16(scales() + chunk.minimum_offset, lane);
    if (!shape.has_sub_scales()) return m;
    const int byte = sub_byte(chunk.sub_minimum_offset, sub, lane);
    return -(m * static_cast<float>(nibbles() ? byte >> 4 : byte));
  }

 private:
  static int plane(const std::byte* data, int bits, int k, int lane) {
    const int j = k / 4;
    const int byte = packed_load<uint8_t>(data, (j % bits) * 64 + lane * 4 + k % 4);
    return (byte >> (j / bits * bits)) & ((1 << bits) - 1);
  }
  bool nibbles() const {
    return shape.has_minimum && chunk.sub_minimum_offset == chunk.sub_scale_offset;
  }
  const std::byte* scales() const {
    return shape.has_sub_scales() ? header : header + index * chunk.header_bytes / 2;
  }
  int sub_byte(size_t offset, int sub, int lane) const {
    return packed_load<uint8_t>(header + offset,
                                static_cast<size_t>(index * chunk.subs + sub) * 16 + lane);
  }
};

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
      return numerics::bf16_to_f32(packed_load<uint16_t>(
          view.group(group),
          view.pairs ? static_cast<size_t>(k / 2) * 32 + lane * 2 + k % 2 : plain));
    default:
      break;
  }
  const PackedTile tile(view, group, k / 32);
  const int sub = k % 32 / (32 / tile.chunk.subs);
  const float value = tile.scale(sub, lane) * static_cast<float>(tile.code(k % 32, lane));
  return tile.shape.has_minimum ? value + tile.minimum(sub, lane) : value;
}

}  // namespace tandem::ops::cpu
