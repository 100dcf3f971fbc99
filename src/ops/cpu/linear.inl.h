// linear with float32 activations, any weight format: decode a panel of 256 columns by 16 rows to
// float32 in L1, once per 64 rows of activations, and multiply it with fma_tile. The weights in
// memory stay quantized.
//
// Per weight and row one fused multiply-add. The bound is the multiply-add rate for many rows,
// memory for one. Included after bytes_*.h.
#pragma once

#include "ops/cpu/fma_tile.inl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/tile.inl.h"

namespace tandem::ops::cpu {
namespace {

inline const std::byte* group_data(const PackedView& view, int32_t group) {
  return view.data + static_cast<size_t>(group) * view.group_bytes;
}

// One tile of 32 columns as float32 [column][16]: value = scale * code + minimum. The product is
// exact, so the fused multiply-add rounds once, as the normative decoder does.
template <Format kFormat>
inline void decode_tile(const std::byte* chunk, int tile, float* out) {
  constexpr int kSubs = TileScales<kFormat>::kSubs;
  const std::byte* codes = tile_codes<kFormat>(chunk, tile);
#pragma clang loop unroll(full)
  for (int part = 0; part < kParts; ++part) {
    const TileScales<kFormat> scales = load_scales<kFormat>(chunk, tile, part);
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      const Bytes four = load_code<kFormat, true>(codes, j, part);
      const int sub = j / (8 / kSubs);
#pragma clang loop unroll(full)
      for (int b = 0; b < 4; ++b) {
        Floats value = byte_to_floats(four, b);
        if constexpr (weights::format_shape(kFormat).has_minimum) {
          value = fma_floats(scales.scale[sub], value, scales.minimum[sub]);
        } else {
          value = mul_floats(scales.scale[sub], value);
        }
        store_floats(out + (4 * j + b) * kGroupRows + part * kPartRows, value);
      }
    }
  }
}

template <Format kFormat>
void decode_tiles(const std::byte* group, int32_t first, int32_t count, float* panel) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  for (int32_t tile = first; tile < first + count; ++tile, panel += 32 * kGroupRows) {
    const std::byte* chunk = group + static_cast<size_t>(tile / kChunk.tiles) * kChunk.bytes;
    decode_tile<kFormat>(chunk, tile % kChunk.tiles, panel);
  }
}

// Columns [begin, begin + depth) of one group as float32 [column][16]; begin is a multiple of
// kPanelDepth.
inline void decode_panel(const PackedView& view, const std::byte* group, int32_t begin,
                         int32_t depth, float* panel) {
  const auto* halves = reinterpret_cast<const uint16_t*>(group) + static_cast<size_t>(begin) * 16;
  const int32_t first = begin / 32;
  const int32_t tiles = depth / 32;
  switch (view.format) {
    case Format::kF32:
      return;  // already a panel
    case Format::kF16:
      for (int32_t k = 0; k < depth; ++k) store(panel + k * 16, load_f16(halves + k * 16));
      return;
    case Format::kBF16:
      for (int32_t k = 0; k < depth; ++k) store(panel + k * 16, load_bf16(halves + k * 16));
      return;
    case Format::kQ80:
      return decode_tiles<Format::kQ80>(group, first, tiles, panel);
    case Format::kQ40:
      return decode_tiles<Format::kQ40>(group, first, tiles, panel);
    case Format::kQ41:
      return decode_tiles<Format::kQ41>(group, first, tiles, panel);
    case Format::kQ50:
      return decode_tiles<Format::kQ50>(group, first, tiles, panel);
    case Format::kQ51:
      return decode_tiles<Format::kQ51>(group, first, tiles, panel);
    case Format::kQ2K:
      return decode_tiles<Format::kQ2K>(group, first, tiles, panel);
    case Format::kQ3K:
      return decode_tiles<Format::kQ3K>(group, first, tiles, panel);
    case Format::kQ4K:
      return decode_tiles<Format::kQ4K>(group, first, tiles, panel);
    case Format::kQ5K:
      return decode_tiles<Format::kQ5K>(group, first, tiles, panel);
    case Format::kQ6K:
      return decode_tiles<Format::kQ6K>(group, first, tiles, panel);
    case Format::kIQ4NL:
      return decode_tiles<Format::kIQ4NL>(group, first, tiles, panel);
    case Format::kIQ4XS:
      return decode_tiles<Format::kIQ4XS>(group, first, tiles, panel);
    case Format::kMXFP4:
      return decode_tiles<Format::kMXFP4>(group, first, tiles, panel);
  }
}

// Up to this many rows a widened panel would not be used often enough to pay for itself.
constexpr int32_t kDirectRows = 8;

// sums[m][16] += the product over columns [begin, begin + depth).
inline void multiply_columns(const LinearF32& p, const std::byte* group, int32_t begin,
                             int32_t depth, const float* x, int32_t rows, float* sums) {
  const std::byte* codes = group;
  const size_t first = static_cast<size_t>(begin) * 16;
  if (p.weights.format == weights::Format::kF32) {
    fma_rows(LoadF32{reinterpret_cast<const float*>(codes) + first, 16}, depth, x, p.stride_x, rows,
             sums, 16);
  } else if (p.weights.format == weights::Format::kF16 && rows <= kDirectRows) {
    fma_rows(LoadF16{reinterpret_cast<const uint16_t*>(codes) + first, 16}, depth, x, p.stride_x,
             rows, sums, 16);
  } else if (p.weights.format == weights::Format::kBF16 && rows <= kDirectRows) {
    fma_rows(LoadBF16{reinterpret_cast<const uint16_t*>(codes) + first, 16}, depth, x, p.stride_x,
             rows, sums, 16);
  } else {
    decode_panel(p.weights, group, begin, depth, p.panel);
    fma_rows(LoadF32{p.panel, 16}, depth, x, p.stride_x, rows, sums, 16);
  }
}

inline void copy_sums(const float* sums, int32_t rows, int32_t valid, float* out,
                      size_t stride_out) {
  for (int32_t m = 0; m < rows; ++m) {
    if (valid == kGroupRows) {
      store(out + m * stride_out, load(sums + m * kGroupRows));
    } else {
      for (int32_t lane = 0; lane < valid; ++lane)
        out[m * stride_out + lane] = sums[m * kGroupRows + lane];
    }
  }
}

inline void linear_f32(const LinearF32& p) {
  alignas(64) float sums[kRowBlock * kGroupRows];
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const std::byte* data = group_data(p.weights, group);
    const int32_t left = p.weights.rows - group * kGroupRows;
    const int32_t valid = left < kGroupRows ? left : kGroupRows;
    for (int32_t row = 0; row < p.rows; row += kRowBlock) {
      const int32_t rows = p.rows - row < kRowBlock ? p.rows - row : kRowBlock;
      for (int32_t m = 0; m < rows; ++m) store(sums + m * kGroupRows, zero());
      for (int32_t k = 0; k < p.weights.columns; k += kPanelDepth) {
        const int32_t depth =
            p.weights.columns - k < kPanelDepth ? p.weights.columns - k : kPanelDepth;
        multiply_columns(p, data, k, depth, p.x + row * p.stride_x + k, rows, sums);
      }
      copy_sums(sums, rows, valid, p.out + row * p.stride_out + group * kGroupRows, p.stride_out);
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
