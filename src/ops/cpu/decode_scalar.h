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

// Code (unsigned, as stored) of block-of-32 formats: column k (0..31) of row `lane`.
inline int packed_code32(weights::Format format, const std::byte* codes, size_t block, int k,
                         int lane) {
  if (format == weights::Format::kQ8_0) {
    return packed_load<uint8_t>(codes, block * 512 + (k / 4) * 64 + lane * 4 + k % 4);
  }
  const int j = k % 16;
  const int byte = packed_load<uint8_t>(codes, block * 256 + (j / 4) * 64 + lane * 4 + j % 4);
  return k < 16 ? byte & 15 : byte >> 4;
}

// The weight at (row `lane` of group `group`, column `k`), with the same rounding as
// weights::dequantize_row.
inline float packed_weight(const PackedView& view, int32_t group, int lane, int32_t k) {
  using weights::Format;
  const std::byte* scales = view.group(group);
  const std::byte* codes = scales + view.code_offset;
  const size_t plain = static_cast<size_t>(k) * 16 + lane;
  const size_t block = k / 32;
  switch (view.format) {
    case Format::kF32:
      return packed_load<float>(codes, plain);
    case Format::kF16:
      return packed_f16(codes, plain);
    case Format::kBF16:
      return numerics::bf16_to_f32(packed_load<uint16_t>(codes, plain));
    case Format::kQ8_0:
      return packed_f16(scales, block * 16 + lane) *
             static_cast<float>(packed_code32(view.format, codes, block, k % 32, lane) - 128);
    case Format::kQ4_0:
      return packed_f16(scales, block * 16 + lane) *
             static_cast<float>(packed_code32(view.format, codes, block, k % 32, lane) - 8);
    case Format::kQ4_1:
      return packed_f16(scales, block * 32 + lane) *
                 static_cast<float>(packed_code32(view.format, codes, block, k % 32, lane)) +
             packed_f16(scales, block * 32 + 16 + lane);
    case Format::kQ6_K: {
      const std::byte* scale = scales + (k / 256) * size_t{288};
      const std::byte* low = codes + (k / 16) * size_t{192};
      const int j = k % 16;
      const int code =
          ((packed_load<uint8_t>(low, (j % 8) * 16 + lane) >> (j / 8 * 4)) & 15) |
          ((packed_load<uint8_t>(low + 128, (j % 4) * 16 + lane) >> (j / 4 * 2) & 3) << 4);
      const auto sub = packed_load<int8_t>(scale, 32 + (k % 256 / 16) * 16 + lane);
      return packed_f16(scale, lane) * static_cast<float>(sub) * static_cast<float>(code - 32);
    }
  }
  return 0;
}

}  // namespace tandem::ops::cpu
