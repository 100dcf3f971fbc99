// linear with int8 activations, any quantized format. Per tile of 32 columns, kPartRows rows of
// weights and one row of activations: an exact integer dot product (dot(), which the including file
// defines), then per scale of the tile one product of scales and one multiply-add, two with a
// minimum. The codes and scales are decoded once for up to kMaxI8Rows rows of activations.
//
// Included after bytes_*.h, tile.inl.h, dot() and kMaxI8Rows.
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

template <Format kFormat>
struct Tile {
  Bytes code[8];
  TileScales<kFormat> scales;
};

// The weights are asked for early. Running past the end is harmless.
template <size_t kBytes>
inline void prefetch_bytes(const std::byte* p) {
#pragma clang loop unroll(full)
  for (size_t i = 0; i < kBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

template <Format kFormat>
inline Tile<kFormat> load_tile(const std::byte* chunk, int tile, int part) {
  Tile<kFormat> out;
  const std::byte* codes = tile_codes<kFormat>(chunk, tile);
#pragma clang loop unroll(full)
  for (int j = 0; j < 8; ++j)
    out.code[j] = load_code<kFormat, kSignedCodes<kFormat>>(codes, j, part);
  out.scales = load_scales<kFormat>(chunk, tile, part);
  return out;
}

template <Format kFormat>
inline Floats add_tile(const Tile<kFormat>& w, const ActivationBlock& x, Floats acc) {
  constexpr int kSubs = TileScales<kFormat>::kSubs;
#pragma clang loop unroll(full)
  for (int sub = 0; sub < kSubs; ++sub) {
    const Floats scale = mul_floats(w.scales.scale[sub], splat_float(x.d));
    acc = fma_floats(scale, dot<kFormat, kSubs>(w.code + sub * (8 / kSubs), x, sub), acc);
    if constexpr (weights::format_shape(kFormat).has_minimum) {
      const float sum = kSubs == 1 ? x.d_times_sum : x.d * static_cast<float>(-x.minus_half[sub]);
      acc = fma_floats(w.scales.minimum[sub], splat_float(sum), acc);
    }
  }
  return acc;
}

// What one call multiplies: `tiles` tiles of a group from chunk `weights` on, and as many blocks of
// `rows` rows of activations from `x` on, into `out`: written, or added to when `add` (there was a
// part of the columns before).
struct Strip {
  const std::byte* weights;
  size_t ahead;  // bytes from the weights that are read to those that are asked for
  size_t tiles;
  int part;
  const ActivationBlock* x;
  size_t stride_x;
  int32_t valid;  // outputs
  float* out;
  size_t stride_out;
  bool add;
};

template <Format kFormat, int kRows>
inline void multiply_rows(const Strip& s) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr auto kTiles = static_cast<size_t>(kChunk.tiles);
  Floats acc[kRows];
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m)
    acc[m] = s.add ? load_some_floats(s.out + m * s.stride_out, s.valid) : splat_float(0);
  const ActivationBlock* x = s.x;
  const auto step = [&](const std::byte* chunk, int tile) {
    const Tile<kFormat> w = load_tile<kFormat>(chunk, tile, s.part);
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) acc[m] = add_tile<kFormat>(w, x[m * s.stride_x], acc[m]);
    ++x;
  };
  const std::byte* chunk = s.weights;
  size_t done = 0;
  for (; done + kTiles <= s.tiles; done += kTiles, chunk += kChunk.bytes) {
#pragma clang loop unroll_count(2)
    for (size_t tile = 0; tile < kTiles; ++tile) {
      prefetch_bytes<kChunk.bytes / kTiles>(chunk + s.ahead + tile * (kChunk.bytes / kTiles));
      step(chunk, static_cast<int>(tile));
    }
  }
  // A last chunk of one tile: only blocks of 32 have it.
  for (int tile = 0; done + static_cast<size_t>(tile) < s.tiles; ++tile) step(chunk, tile);
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) store_some_floats(s.out + m * s.stride_out, acc[m], s.valid);
}

// Any number of rows, the codes decoded once for up to kMaxI8Rows of them.
template <Format kFormat>
inline void multiply_strip(Strip s, int32_t rows) {
  const auto take = [&]<int kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      multiply_rows<kFormat, kRows>(s);
      s.x += kRows * s.stride_x;
      s.out += kRows * s.stride_out;
    }
  };
  if constexpr (kMaxI8Rows > 8) take.template operator()<kMaxI8Rows>();
  if constexpr (kMaxI8Rows >= 8) take.template operator()<8>();
  take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

// Few rows: group by group, each read once from memory as one stream.
constexpr int32_t kFewRows = 32;
constexpr size_t kStreamAhead = 4096;
// Many rows: strips of so many columns and rows, of which the activations stay in the first cache
// while all groups pass.
constexpr size_t kStripTiles = 16;
constexpr int32_t kStripRows = 16;

// The pieces of a product in the order that the caches like; function(row, rows, tile, tiles,
// group). Every output's pieces come in the order of their columns.
template <typename Function>
inline void for_pieces(const LinearI8& p, bool groups_first, size_t strip, int32_t row_step,
                       const Function& function) {
  const auto tiles = static_cast<size_t>(p.weights.columns / 32);
  const size_t strips = (tiles + strip - 1) / strip;
  const auto groups = static_cast<size_t>(p.group_end - p.group_begin);
  for (int32_t row = 0; row < p.rows; row += row_step) {
    const int32_t rows = p.rows - row < row_step ? p.rows - row : row_step;
    for (size_t i = 0; i < groups * strips; ++i) {
      const size_t tile = (groups_first ? i % strips : i / groups) * strip;
      const auto group = static_cast<int32_t>(groups_first ? i / strips : i % groups);
      function(row, rows, tile, tiles - tile < strip ? tiles - tile : strip, p.group_begin + group);
    }
  }
}

template <Format kFormat>
inline const std::byte* chunk_of(const LinearI8& p, int32_t group, size_t tile) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  return p.weights.data + static_cast<size_t>(group) * p.weights.group_bytes +
         tile / static_cast<size_t>(kChunk.tiles) * kChunk.bytes;
}

template <Format kFormat>
void multiply_panels(const LinearI8& p) {
  alignas(64) float sums[kFewRows * kGroupRows];
  const auto piece = [&](int32_t row, int32_t rows, size_t tile, size_t tiles, int32_t group) {
    const int32_t left = p.weights.rows - group * kGroupRows;
    const int32_t valid = left < kGroupRows ? left : kGroupRows;
    float* out = p.out + row * p.stride_out + group * kGroupRows;
    for (int32_t m = 0; m < rows; ++m) {
      for (int32_t lane = 0; lane < kGroupRows; lane += kPartRows) {
        const bool there = tile != 0 && lane < valid;
        store_floats(
            sums + m * kGroupRows + lane,
            there ? load_some_floats(out + m * p.stride_out + lane, valid - lane) : splat_float(0));
      }
    }
    multiply_panel<kFormat>(chunk_of<kFormat>(p, group, tile), tiles, p.x + row * p.stride_x + tile,
                            p.stride_x, rows, sums, kGroupRows);
    for (int32_t m = 0; m < rows; ++m) {
      for (int32_t lane = 0; lane < valid; lane += kPartRows)
        store_some_floats(out + m * p.stride_out + lane, load_floats(sums + m * kGroupRows + lane),
                          valid - lane);
    }
  };
  for_pieces(p, p.rows <= kFewRows, kPanelTiles, kFewRows, piece);
}

template <Format kFormat>
void multiply_groups(const LinearI8& p) {
  if constexpr (kPanelFrom > 0) {
    if (p.rows >= kPanelFrom) return multiply_panels<kFormat>(p);
  }
  const bool few = p.rows <= kFewRows;
  const auto piece = [&](int32_t row, int32_t rows, size_t tile, size_t tiles, int32_t group) {
    const int32_t valid = p.weights.rows - group * kGroupRows;
    for (int part = 0; part < kParts && part * kPartRows < valid; ++part) {
      multiply_strip<kFormat>(
          {.weights = chunk_of<kFormat>(p, group, tile),
           .ahead = few ? kStreamAhead : p.weights.group_bytes,
           .tiles = tiles,
           .part = part,
           .x = p.x + row * p.stride_x + tile,
           .stride_x = p.stride_x,
           .valid = valid - part * kPartRows,
           .out = p.out + row * p.stride_out + group * kGroupRows + part * kPartRows,
           .stride_out = p.stride_out,
           .add = tile != 0},
          rows);
    }
  };
  for_pieces(p, few, few ? static_cast<size_t>(p.weights.columns) : kStripTiles,
             few ? kFewRows : kStripRows, piece);
}

inline void linear_i8(const LinearI8& p) {
  switch (p.weights.format) {
    case Format::kQ80:
      return multiply_groups<Format::kQ80>(p);
    case Format::kQ40:
      return multiply_groups<Format::kQ40>(p);
    case Format::kQ41:
      return multiply_groups<Format::kQ41>(p);
    case Format::kQ50:
      return multiply_groups<Format::kQ50>(p);
    case Format::kQ51:
      return multiply_groups<Format::kQ51>(p);
    case Format::kQ2K:
      return multiply_groups<Format::kQ2K>(p);
    case Format::kQ3K:
      return multiply_groups<Format::kQ3K>(p);
    case Format::kQ4K:
      return multiply_groups<Format::kQ4K>(p);
    case Format::kQ5K:
      return multiply_groups<Format::kQ5K>(p);
    case Format::kQ6K:
      return multiply_groups<Format::kQ6K>(p);
    case Format::kIQ4NL:
      return multiply_groups<Format::kIQ4NL>(p);
    case Format::kIQ4XS:
      return multiply_groups<Format::kIQ4XS>(p);
    case Format::kMXFP4:
      return multiply_groups<Format::kMXFP4>(p);
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      return;  // the caller asked has_int8_kernel()
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
