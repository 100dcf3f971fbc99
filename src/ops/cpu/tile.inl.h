// Reads a packed matrix of any quantized format, 32 columns at a time: the codes as bytes, the
// scales and minimums as float32. Everything about a format is a compile-time constant here, so
// each instance is straight code: a load, a shift and a mask per code vector, two more and an "or"
// where there is a high plane, one shuffle where there is a table.
//
// Included after bytes_avx2.h or bytes_avx512.h; internal linkage like those.
#pragma once

#include "ops/packed_matrix.h"

namespace tandem::ops::cpu {
namespace {

using weights::Format;

// What is subtracted from the codes that load_code<kFormat, false> gives, all at least 0: a power
// of two, so that kernels can shift instead of multiply. Tables are moved up by it.
template <Format kFormat>
constexpr int unsigned_zero() {
  return kFormat == Format::kMXFP4                         ? 16
         : weights::format_shape(kFormat).table != nullptr ? 128
                                                           : weights::format_shape(kFormat).zero;
}
// The largest such code.
template <Format kFormat>
constexpr int largest_code() {
  return kFormat == Format::kMXFP4 ? 28
         : weights::format_shape(kFormat).table != nullptr
             ? 241
             : (1 << weights::format_shape(kFormat).bits) - 1;
}

// Code vector j of a tile, rows of part `part`: signed values, or unsigned ones with a zero.
template <Format kFormat, bool kSigned>
inline Bytes load_code(const std::byte* codes, int j, int part) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr weights::FormatShape kShape = weights::format_shape(kFormat);
  constexpr int kLow = kChunk.low_bits;
  constexpr int kHigh = kChunk.high_bits;
  const std::byte* at = codes + part * (64 / kParts);
  Bytes code = load_bytes(at + (j % kLow) * 64);
  if constexpr (kLow < 8) {
    code = and_bytes(shift_bytes_right(code, j / kLow * kLow), splat_byte((1 << kLow) - 1));
  }
  if constexpr (kHigh > 0) {
    const Bytes plane = load_bytes(at + kLow * 64 + (j % kHigh) * 64);
    const int right = j / kHigh * kHigh - kLow;
    const Bytes moved =
        right >= 0 ? shift_bytes_right(plane, right) : shift_bytes_left(plane, -right);
    code = or_bytes(code, and_bytes(moved, splat_byte(((1 << kHigh) - 1) << kLow)));
  }
  if constexpr (kShape.table != nullptr) {
    const Bytes table = load_table(kShape.table);
    code = look_up(kSigned ? table : add_bytes(table, splat_byte(unsigned_zero<kFormat>())), code);
  } else if constexpr (kSigned && kShape.zero != 0) {
    code = sub_bytes(code, splat_byte(kShape.zero));
  }
  return code;
}

// Scales of the 16 (kPartRows) rows for the tile's one or two sub-blocks, and what is added to the
// scaled codes.
template <Format kFormat>
struct TileScales {
  static constexpr int kSubs = chunk_shape(kFormat).subs;
  Floats scale[kSubs];
  Floats minimum[kSubs];
};

template <Format kFormat>
inline TileScales<kFormat> load_scales(const std::byte* chunk, int tile, int part) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr weights::FormatShape kShape = weights::format_shape(kFormat);
  TileScales<kFormat> out;
  if constexpr (!kShape.has_sub_scales()) {
    const std::byte* d =
        chunk + static_cast<size_t>(tile) * (kChunk.header_bytes / 2) + part * kPartRows * 2;
    out.scale[0] = kFormat == Format::kMXFP4 ? floats_of_bf16(d) : floats_of_f16(d);
    if constexpr (kShape.has_minimum) out.minimum[0] = floats_of_f16(d + kChunk.minimum_offset);
  } else {
    constexpr bool kNibbles =
        kShape.has_minimum && kChunk.sub_minimum_offset == kChunk.sub_scale_offset;
    const std::byte* d = chunk + part * kPartRows * 2;
    const Floats block_scale = floats_of_f16(d);
    Floats block_minimum = splat_float(-1.0F);
    if constexpr (kShape.has_minimum)
      block_minimum = mul_floats(block_minimum, floats_of_f16(d + kChunk.minimum_offset));
#pragma clang loop unroll(full)
    for (int sub = 0; sub < kChunk.subs; ++sub) {
      const std::byte* bytes = chunk + (tile * kChunk.subs + sub) * 16 + part * kPartRows;
      const std::byte* scale = bytes + kChunk.sub_scale_offset;
      out.scale[sub] =
          mul_floats(block_scale, kNibbles ? floats_of_u4(scale, 0) : floats_of_i8(scale));
      if constexpr (kShape.has_minimum) {
        const std::byte* minimum = bytes + kChunk.sub_minimum_offset;
        out.minimum[sub] =
            mul_floats(block_minimum, kNibbles ? floats_of_u4(minimum, 4) : floats_of_u8(minimum));
      }
    }
  }
  return out;
}

template <Format kFormat>
inline const std::byte* tile_codes(const std::byte* chunk, int tile) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  return chunk + kChunk.header_bytes + static_cast<size_t>(tile) * kChunk.tile_bytes;
}

}  // namespace
}  // namespace tandem::ops::cpu
