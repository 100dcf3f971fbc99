// linear with int8 activations, any quantized format. Per tile of 32 columns, kPartRows rows of
// weights and one row of activations: an exact integer dot product (dots(), which the including
// file defines for up to kDotRows rows at once), then per scale of the tile one product of scales
// and one multiply-add, two with a minimum. The codes and scales are decoded once for up to
// kMaxI8Rows rows of activations.
//
// Included after bytes_*.h, tile.inl.h, dots(), kDotRows, kMaxI8Rows, kTileUnroll, kInlineTiles,
// kStreamAhead and asks_early().
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

template <Format kFormat>
struct Tile {
  Bytes code[8];
  TileScales<kFormat> scales;
};

// Asks for what is read kStreamAhead bytes later. Running past the end is harmless.
template <size_t kBytes>
inline void prefetch_bytes(const std::byte* p) {
#pragma clang loop unroll(full)
  for (size_t i = 0; i < kBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + kStreamAhead + i), _MM_HINT_T0);
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

// Adds the tile times kRows rows of activations (at most kDotRows) to their sums.
template <Format kFormat, int kRows>
__attribute__((always_inline)) inline void add_tile(const Tile<kFormat>& w,
                                                    const ActivationBlock* x, size_t stride_x,
                                                    Floats* acc) {
  constexpr int kSubs = TileScales<kFormat>::kSubs;
#pragma clang loop unroll(full)
  for (int sub = 0; sub < kSubs; ++sub) {
    Floats dot[kRows];
    dots<kFormat, kSubs>(w.code + sub * (8 / kSubs), x, stride_x, sub, dot);
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
      const ActivationBlock& own = x[m * stride_x];
      const Floats scale = mul_floats(w.scales.scale[sub], splat_float(own.d));
      acc[m] = fma_floats(scale, dot[m], acc[m]);
      if constexpr (weights::format_shape(kFormat).has_minimum) {
        const float sum =
            kSubs == 1 ? own.d_times_sum : own.d * static_cast<float>(-own.minus_half[sub]);
        acc[m] = fma_floats(w.scales.minimum[sub], splat_float(sum), acc[m]);
      }
    }
  }
}

// A group times kRows rows of activations: all parts in one pass, a single stream.
template <Format kFormat, int kRows>
inline void multiply_rows(const std::byte* group, size_t tiles, const ActivationBlock* x,
                          size_t stride_x, int32_t valid, float* out, size_t stride_out) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr auto kTiles = static_cast<size_t>(kChunk.tiles);
  Floats acc[kParts][kRows];
#pragma clang loop unroll(full)
  for (int i = 0; i < kParts * kRows; ++i) acc[i / kRows][i % kRows] = splat_float(0);
  const auto step = [&](const std::byte* chunk, int tile, size_t column_tile) {
#pragma clang loop unroll(full)
    for (int part = 0; part < kParts; ++part) {
      const Tile<kFormat> w = load_tile<kFormat>(chunk, tile, part);
      constexpr int kStep = kRows < kDotRows ? kRows : kDotRows;
#pragma clang loop unroll(full)
      for (int m = 0; m < kRows; m += kStep)
        add_tile<kFormat, kStep>(w, x + m * stride_x + column_tile, stride_x, acc[part] + m);
    }
  };
  // A call reads and writes all sums for every tile; where registers are few, what the compiler
  // spills otherwise costs more.
  const auto run = [&](const std::byte* chunk, int tile, size_t column_tile)
                       __attribute__((always_inline)) {
                         if constexpr (kInlineTiles) {
                           [[clang::always_inline]] step(chunk, tile, column_tile);
                         } else {
                           step(chunk, tile, column_tile);
                         }
                       };
  const std::byte* chunk = group;
  const bool ask = asks_early();
  size_t done = 0;
  for (; done + kTiles <= tiles; done += kTiles, chunk += kChunk.bytes) {
#pragma clang loop unroll_count(kTileUnroll<kFormat>)
    for (size_t tile = 0; tile < kTiles; ++tile) {
      if (ask) prefetch_bytes<kChunk.bytes / kTiles>(chunk + tile * (kChunk.bytes / kTiles));
      run(chunk, static_cast<int>(tile), done + tile);
    }
  }
  // A last chunk of one tile: only blocks of 32 have it.
  for (int tile = 0; done + static_cast<size_t>(tile) < tiles; ++tile)
    run(chunk, tile, done + static_cast<size_t>(tile));
#pragma clang loop unroll(full)
  for (int i = 0; i < kParts * kRows; ++i) {
    const int at = i / kRows * kPartRows;
    store_some_floats(out + i % kRows * stride_out + at, acc[i / kRows][i % kRows], valid - at);
  }
}

// The codes decoded once for up to kMaxI8Rows rows. All rows pass before the next group: a group
// stays in the second cache, and activations come from there or from the third without being waited
// for. (Strips of columns that keep the activations in the first cache were measured: not faster.)
template <Format kFormat>
void multiply_group(const LinearI8& p, const std::byte* group, int32_t valid, float* out) {
  const auto tiles = static_cast<size_t>(p.weights.columns / 32);
  const ActivationBlock* x = p.x;
  int32_t rows = p.rows;
  const auto take = [&]<int kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      multiply_rows<kFormat, kRows>(group, tiles, x, p.stride_x, valid, out, p.stride_out);
      x += kRows * p.stride_x;
      out += kRows * p.stride_out;
    }
  };
  if constexpr (kMaxI8Rows > 8) take.template operator()<kMaxI8Rows>();
  if constexpr (kMaxI8Rows >= 8) take.template operator()<8>();
  if constexpr (kMaxI8Rows >= 4) take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

template <Format kFormat>
void multiply_groups(const LinearI8& p) {
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const std::byte* data = p.weights.data + static_cast<size_t>(group) * p.weights.group_bytes;
    const int32_t valid = p.weights.rows - group * kGroupRows;
    float* out = p.out + group * kGroupRows;
    if constexpr (kPanelFrom > 0) {
      if (p.rows >= kPanelFrom) {
        multiply_panels<kFormat>(p, data, valid < kGroupRows ? valid : kGroupRows, out);
        continue;
      }
    }
    multiply_group<kFormat>(p, data, valid, out);
  }
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
