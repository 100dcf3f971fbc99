// Products of attention in AMX's tiles: up to 32 rows of A, up to four columns of sixteen of B.
// Included after the simd header.
#pragma once

#include "ops/cpu/tiles_amx.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kDepth = 32;  // BF16 numbers in a row of A, summed by one product
constexpr int32_t kRows = 16;   // of a tile

// Tiles: sums (0 to 3) of four columns or of two for either of two tiles of rows, rows of A (4, 5),
// columns of B (6, 7).
void configure(int32_t pairs) {
  TileConfig config;
  const int32_t first = pairs < kRows ? pairs : kRows;
  const int32_t second = pairs > kRows ? pairs - kRows : first;
  for (const int tile : {0, 1, 4}) config.set(tile, first, 64);
  for (const int tile : {2, 3, 5}) config.set(tile, second, 64);
  for (const int tile : {6, 7}) config.set(tile, kRows, 64);
  config.load();
}

// Adds A * B to the sums: 32 numbers of each row of `a`, one kilobyte of `b` for each column.
template <int kRowTiles, int kColumnTiles>
inline void multiply(const std::byte* a, size_t stride_a, const std::byte* b, size_t stride_b) {
  _tile_loadd(4, a, stride_a);
  _tile_loadd(6, b, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kColumnTiles > 1) {
    _tile_loadd(7, b + stride_b, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (kRowTiles == 2) {
    static_assert(kColumnTiles <= 2);
    _tile_loadd(5, a + kRows * stride_a, stride_a);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kColumnTiles > 1) _tile_dpbf16ps(3, 5, 7);
  } else {
    if constexpr (kColumnTiles > 2) {
      _tile_loadd(6, b + 2 * stride_b, 64);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (kColumnTiles > 3) {
      _tile_loadd(7, b + 3 * stride_b, 64);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
}

template <int kRowTiles, int kColumnTiles>
inline void clear_tiles() {
  _tile_zero(0);
  if constexpr (kColumnTiles > 1) _tile_zero(1);
  if constexpr (kRowTiles == 2 || kColumnTiles > 2) _tile_zero(2);
  if constexpr ((kRowTiles == 2 && kColumnTiles > 1) || kColumnTiles > 3) _tile_zero(3);
}

// To out[row][16 * column], rows `stride` floats apart.
template <int kRowTiles, int kColumnTiles>
inline void store_tiles(float* out, size_t stride) {
  const size_t bytes = stride * sizeof(float);
  _tile_stored(0, out, bytes);
  if constexpr (kColumnTiles > 1) _tile_stored(1, out + 16, bytes);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, out + kRows * stride, bytes);
    if constexpr (kColumnTiles > 1) _tile_stored(3, out + kRows * stride + 16, bytes);
  } else {
    if constexpr (kColumnTiles > 2) _tile_stored(2, out + 32, bytes);
    if constexpr (kColumnTiles > 3) _tile_stored(3, out + 48, bytes);
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
