// linear with BF16 weights and activations in tiles: the packed pairs of columns of a group are
// tdpbf16ps's weights as they lie. 16 rows x 16 outputs x 32 columns take 16 cycles however few the
// rows are, 64 bytes of weights a cycle, so one row is bound by memory and goes the same way: a row
// of the sums depends on its own activations only, whatever the tile's other rows.
//
// Two tiles of rows times two groups share four sums: four tile loads (8 cycles each) for four
// products (16 each), so the products are the bound. Beside them activations come from the second
// cache with 32 bytes a cycle; a strip of two groups' weights stays in the first, and the sums wait
// in `out` while others work on their strip, which does not change them.
//
// tdpbf16ps rounds to nearest even and takes denormal inputs and results for zeros.
#include "ops/cpu/amx.h"
#include "ops/cpu/tiles_amx.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kDepth = 32;         // columns of a product
constexpr int32_t kStrip = 16;         // products of a strip: 32 KiB of two groups' weights
constexpr int32_t kGroupsAtOnce = 16;  // whose sums stay in the second cache
constexpr int32_t kTileRows = 16;
constexpr int32_t kBlockRows = 2 * kTileRows;

// Activations of 32 rows and weights of two groups for the last columns, with zeros up to 32.
struct Ends {
  alignas(64) uint16_t x[kBlockRows][kDepth];
  alignas(64) uint16_t weights[2][kDepth / 2][kGroupRows * 2];
};

// Up to kTileRows rows in each of kTiles tiles, up to two groups of outputs.
template <int kTiles, int kGroups>
class Product {
 public:
  Product(const LinearBf16& p, Ends& ends)
      : p_(p),
        ends_(ends),
        whole_(p.weights.columns / kDepth),
        end_pairs_((p.weights.columns % kDepth + 1) / 2) {}

  // The sums of rows [row, ...) and the groups from `group` on over products [first, last) of
  // kDepth columns; the last one may be the ends.
  void add(int32_t row, int32_t rows, int32_t group, int32_t first, int32_t last) {
    const uint16_t* x = p_.x + static_cast<size_t>(row) * p_.stride_x;
    const std::byte* weights =
        p_.weights.data + static_cast<size_t>(group) * p_.weights.group_bytes;
    float* out = p_.out + static_cast<size_t>(row) * p_.stride_out +
                 static_cast<ptrdiff_t>(group) * kGroupRows;
    const size_t x_stride = p_.stride_x * sizeof(uint16_t);
    const size_t out_stride = p_.stride_out * sizeof(float);
    start(out, out_stride, first == 0);
    const int32_t whole = last < whole_ ? last : whole_;
    for (int32_t k = first; k < whole; ++k) {
      multiply(x + static_cast<ptrdiff_t>(k) * kDepth, x_stride,
               weights + static_cast<size_t>(k) * 1024, p_.weights.group_bytes);
    }
    if (last > whole_) {
      copy_ends(x, rows, weights);
      multiply(ends_.x[0], kDepth * sizeof(uint16_t),
               reinterpret_cast<const std::byte*>(ends_.weights[0]), sizeof(ends_.weights[0]));
    }
    finish(out, out_stride);
  }

 private:
  // Tiles: sums 0 to 3 (row tile, group), activations 4 and 5, weights 6 and 7.
  static void start(const float* out, size_t stride, bool zero) {
    if (zero) {
      _tile_zero(0);
      if constexpr (kGroups == 2) _tile_zero(1);
      if constexpr (kTiles == 2) _tile_zero(2);
      if constexpr (kTiles == 2 && kGroups == 2) _tile_zero(3);
      return;
    }
    const float* below = out + kTileRows * (stride / sizeof(float));
    _tile_loadd(0, out, stride);
    if constexpr (kGroups == 2) _tile_loadd(1, out + kGroupRows, stride);
    if constexpr (kTiles == 2) _tile_loadd(2, below, stride);
    if constexpr (kTiles == 2 && kGroups == 2) _tile_loadd(3, below + kGroupRows, stride);
  }

  static void finish(float* out, size_t stride) {
    float* below = out + kTileRows * (stride / sizeof(float));
    _tile_stored(0, out, stride);
    if constexpr (kGroups == 2) _tile_stored(1, out + kGroupRows, stride);
    if constexpr (kTiles == 2) _tile_stored(2, below, stride);
    if constexpr (kTiles == 2 && kGroups == 2) _tile_stored(3, below + kGroupRows, stride);
  }

  static void multiply(const uint16_t* x, size_t x_stride, const std::byte* weights,
                       size_t group_bytes) {
    _tile_loadd(4, x, x_stride);
    _tile_loadd(6, weights, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kGroups == 2) {
      _tile_loadd(7, weights + group_bytes, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTiles == 2) {
      _tile_loadd(5, x + kTileRows * (x_stride / sizeof(uint16_t)), x_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kGroups == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }

  void copy_ends(const uint16_t* x, int32_t rows, const std::byte* weights) {
    const auto x_bytes = static_cast<size_t>(end_pairs_) * 4;
    for (int32_t row = 0; row < rows; ++row) {
      __builtin_memcpy(
          ends_.x[row],
          x + static_cast<size_t>(row) * p_.stride_x + static_cast<ptrdiff_t>(whole_) * kDepth,
          x_bytes);
    }
    for (int g = 0; g < kGroups; ++g) {
      __builtin_memcpy(ends_.weights[g],
                       weights + static_cast<size_t>(g) * p_.weights.group_bytes +
                           static_cast<size_t>(whole_) * 1024,
                       static_cast<size_t>(end_pairs_) * 64);
    }
  }

  const LinearBf16& p_;
  Ends& ends_;
  int32_t whole_;      // products of kDepth columns
  int32_t end_pairs_;  // of the columns behind them
};

struct Range {
  int32_t begin;
  int32_t end;
};

// Rows in blocks of kTiles tiles, the last with `last_rows` rows; groups in steps of kGroups, the
// last with `last_outputs` outputs.
template <int kTiles, int kGroups>
void multiply_range(const LinearBf16& p, Ends& ends, Range rows, Range groups, int32_t last_rows,
                    int32_t last_outputs) {
  if (rows.begin >= rows.end || groups.begin >= groups.end) return;
  TileConfig config;
  for (int m = 0; m < kTiles; ++m) {
    const int32_t tile_rows = m + 1 < kTiles ? kTileRows : last_rows;
    config.set(4 + m, tile_rows, 64);
    for (int g = 0; g < kGroups; ++g)
      config.set(2 * m + g, tile_rows, 4 * (g + 1 < kGroups ? kGroupRows : last_outputs));
  }
  for (int g = 0; g < kGroups; ++g)
    config.set(6 + g, kDepth / 2, 4 * (g + 1 < kGroups ? kGroupRows : last_outputs));
  config.load();
  Product<kTiles, kGroups> product(p, ends);
  const int32_t products = (p.weights.columns + kDepth - 1) / kDepth;
  const int32_t block = (kTiles - 1) * kTileRows + last_rows;
  // One block of rows needs each weight once.
  const int32_t strip = rows.end - rows.begin <= block ? products : kStrip;
  for (int32_t some = groups.begin; some < groups.end; some += kGroupsAtOnce) {
    const int32_t end = some + kGroupsAtOnce < groups.end ? some + kGroupsAtOnce : groups.end;
    for (int32_t first = 0; first < products; first += strip) {
      const int32_t last = first + strip < products ? first + strip : products;
      for (int32_t group = some; group < end; group += kGroups) {
        for (int32_t row = rows.begin; row < rows.end; row += block)
          product.add(row, block, group, first, last);
      }
    }
  }
}

// All rows times `groups`, which are whole steps of kGroups.
template <int kGroups>
void multiply_groups(const LinearBf16& p, Ends& ends, Range groups, int32_t last_outputs) {
  const int32_t whole = p.rows / kBlockRows * kBlockRows;
  const int32_t left = p.rows - whole;
  multiply_range<2, kGroups>(p, ends, {0, whole}, groups, kTileRows, last_outputs);
  if (left > kTileRows) {
    multiply_range<2, kGroups>(p, ends, {whole, p.rows}, groups, left - kTileRows, last_outputs);
  } else if (left > 0) {
    multiply_range<1, kGroups>(p, ends, {whole, p.rows}, groups, left, last_outputs);
  }
}

}  // namespace

void linear_bf16_amx(const LinearBf16& p) {
  if (p.rows == 0 || p.group_begin >= p.group_end) return;
  Ends ends;
  __builtin_memset(&ends, 0, sizeof(ends));
  const int32_t valid = p.weights.rows - (p.group_end - 1) * kGroupRows;  // of the last group
  const int32_t last = valid < kGroupRows ? valid : kGroupRows;
  const int32_t pairs = p.group_begin + (p.group_end - p.group_begin) / 2 * 2;
  const bool single = pairs < p.group_end;
  // Steps of two whole groups, then what is left.
  const int32_t full = single || last == kGroupRows ? pairs : pairs - 2;
  multiply_groups<2>(p, ends, {p.group_begin, full}, kGroupRows);
  if (single) {
    multiply_groups<1>(p, ends, {pairs, p.group_end}, last);
  } else {
    multiply_groups<2>(p, ends, {full, pairs}, last);
  }
  _tile_release();
}

}  // namespace tandem::ops::cpu
