// linear with int8 activations in tiles: 16 rows times 16 outputs times the 32 columns that share a
// scale are one tdpbssd. The bits are linear_i8_avx512()'s, which takes what is not 16 rows and the
// formats that scale 16 columns: integer sums are exact, and what follows is the same in the same
// order.
//
// Bound, for 16 x 16 x 32: tdpbssd 16 cycles and the store of its sums 16, which do not overlap on
// Sapphire and Emerald Rapids, and for each row a product of two scales, a conversion and a
// multiply-add (two with a minimum): 48 (64) operations. Two ports do them in 24 (32) cycles, but
// while tiles work, and some 20 cycles after, 512-bit floating point has one port alone. So tiles
// and scaling take turns: the products of some blocks, whose sums wait in the first cache, then
// their scaling, 56 (64) cycles in all. vpdpbusd takes 88 (96).
//
// A strip of columns of two groups, which share the loads of activations and their scales, is
// decoded once for all rows, to signed codes, which lie as tdpbssd wants them already.
// clang-format off: the vector types come first
#include "ops/cpu/bytes_avx512.h"
#include "ops/cpu/tile.inl.h"
#include "ops/cpu/kernels.h"
// clang-format on
#include "ops/cpu/amx.h"
#include "ops/cpu/avx512.h"
#include "ops/cpu/tiles_amx.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kTileRows = 16;
constexpr int32_t kStripTiles = 24;  // of 32 columns; whole chunks of every format
constexpr int32_t kBurst = 6;        // tiles of columns whose sums wait to be scaled

constexpr int32_t least(int32_t x, int32_t y) { return x < y ? x : y; }

// A strip of columns of kGroups groups.
template <int kGroups>
struct alignas(64) Panel {
  int8_t codes[kGroups][kStripTiles * 512];
  float scale[kStripTiles][kGroups][16];
  float minimum[kStripTiles][kGroups][16];
};

template <Format kFormat, int kGroups>
void decode(const std::byte* group, int32_t first, int32_t count, int at, Panel<kGroups>& panel) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  for (int32_t i = 0; i < count; ++i) {
    const std::byte* chunk = group + static_cast<size_t>((first + i) / kChunk.tiles) * kChunk.bytes;
    const int tile = (first + i) % kChunk.tiles;
    const std::byte* codes = tile_codes<kFormat>(chunk, tile);
    int8_t* to = panel.codes[at] + static_cast<ptrdiff_t>(i) * 512;
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j)
      _mm512_store_si512(to + j * 64, load_code<kFormat, true>(codes, j, 0));
    const TileScales<kFormat> scales = load_scales<kFormat>(chunk, tile, 0);
    store_floats(panel.scale[i][at], scales.scale[0]);
    if constexpr (weights::format_shape(kFormat).has_minimum)
      store_floats(panel.minimum[i][at], scales.minimum[0]);
  }
}

// Sixteen rows of activations, from a strip's first column on.
struct Rows {
  const ActivationBlock* x;
  size_t stride;  // blocks
};

// sum += x * y, in the register of sum: left alone, the compiler writes to that of x or y, moves
// all sums back at the end of each round and takes the rows in an order that spills.
inline void add_product(__m512 x, __m512 y, __m512& sum) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
}

// What tile registers hold: activations (0, 1), weights (2, 3) and sums (4 to 7), which products
// take in turn.
constexpr int kA = 0;
constexpr int kB = 2;
constexpr int kC = 4;

template <bool kMinimum, int kGroups>
class Strip {
 public:
  static constexpr int kPassRows = kTileRows / kGroups;

  Strip(const Panel<kGroups>& panel, int32_t blocks, __mmask16 last_valid)
      : panel_(panel), blocks_(blocks), last_valid_(last_valid) {
    const int32_t bursts = (blocks + kBurst - 1) / kBurst;
    burst_ = (blocks + bursts - 1) / bursts;
  }

  // Adds the strip to 16 rows of out, from zero if `first`.
  void add(const Rows& rows, float* out, size_t stride_out, bool first) {
    for (int32_t at = 0; at < blocks_; at += burst_) {
      const int32_t count = least(burst_, blocks_ - at);
      products(rows, at, count);
      for (int row = 0; row < kTileRows; row += kPassRows) {
        scale({rows.x + static_cast<size_t>(row) * rows.stride, rows.stride}, at, count,
              sums_[0][0] + row * 16, out + static_cast<size_t>(row) * stride_out, stride_out,
              at == 0 && first);
      }
    }
  }

 private:
  // Product kSlot of four in turn: of block `block` of the rows with group kSlot % kGroups. What it
  // gave is stored after the next one has begun.
  template <int kSlot>
  __attribute__((always_inline)) void product(const Rows& rows, int32_t block) {
    constexpr int kGroup = kSlot % kGroups;
    constexpr int kTileA = kA + kSlot / kGroups % 2;
    if constexpr (kGroup == 0) {
      _tile_loadd(kTileA, rows.x + block, rows.stride * sizeof(ActivationBlock));
    }
    _tile_loadd(kB + kSlot % 2, panel_.codes[kGroup] + static_cast<ptrdiff_t>(block) * 512, 64);
    _tile_zero(kC + kSlot);
    _tile_dpbssd(kC + kSlot, kTileA, kB + kSlot % 2);
  }
  template <int kSlot>
  __attribute__((always_inline)) void store(int32_t place) {
    _tile_stored(kC + kSlot, sums_[place][kSlot % kGroups], 64);
  }

  void products(const Rows& rows, int32_t at, int32_t count) {
    constexpr int kPlaces = 4 / kGroups;  // blocks of a turn
    int32_t i = 0;
    for (; i + kPlaces <= count; i += kPlaces) {
      product<0>(rows, at + i);
      if (i > 0) store<3>(i - 1);
      product<1>(rows, at + i + 1 / kGroups);
      store<0>(i);
      product<2>(rows, at + i + 2 / kGroups);
      store<1>(i + 1 / kGroups);
      product<3>(rows, at + i + 3 / kGroups);
      store<2>(i + 2 / kGroups);
    }
    if (i > 0) store<3>(i - 1);
    for (; i < count; ++i) {
      product<0>(rows, at + i);
      if constexpr (kGroups == 2) product<1>(rows, at + i);
      store<0>(i);
      if constexpr (kGroups == 2) store<1>(i);
    }
  }

  // Adds `count` scaled blocks of kPassRows rows to out.
  void scale(const Rows& rows, int32_t at, int32_t count, const int32_t* sums, float* out,
             size_t stride_out, bool zero) const {
    __m512 sum[kPassRows][kGroups];
#pragma clang loop unroll(full)
    for (int m = 0; m < kPassRows; ++m) {
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) {
        sum[m][g] = _mm512_maskz_loadu_ps(zero ? __mmask16{0} : valid(g),
                                          out + static_cast<size_t>(m) * stride_out + g * 16);
      }
    }
    for (int32_t i = 0; i < count; ++i, sums += kGroups * 256) {
      const int32_t block = at + i;
      const ActivationBlock* x = rows.x + block;
      __m512 scale[kGroups];
      __m512 minimum[kGroups];
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) {
        scale[g] = _mm512_load_ps(panel_.scale[block][g]);
        if constexpr (kMinimum) minimum[g] = _mm512_load_ps(panel_.minimum[block][g]);
      }
#pragma clang loop unroll(full)
      for (int m = 0; m < kPassRows; ++m) {
        const ActivationBlock& own = x[m * rows.stride];
        const __m512 d = _mm512_set1_ps(own.d);
#pragma clang loop unroll(full)
        for (int g = 0; g < kGroups; ++g) {
          const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums + g * 256 + m * 16));
          add_product(_mm512_mul_ps(scale[g], d), dot, sum[m][g]);
        }
        if constexpr (kMinimum) {
          const __m512 total = _mm512_set1_ps(own.d_times_sum);
#pragma clang loop unroll(full)
          for (int g = 0; g < kGroups; ++g) add_product(minimum[g], total, sum[m][g]);
        }
      }
    }
#pragma clang loop unroll(full)
    for (int m = 0; m < kPassRows; ++m) {
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) {
        _mm512_mask_storeu_ps(out + static_cast<size_t>(m) * stride_out + g * 16, valid(g),
                              sum[m][g]);
      }
    }
  }

  __mmask16 valid(int group) const {
    return group + 1 < kGroups ? static_cast<__mmask16>(0xFFFF) : last_valid_;
  }

  const Panel<kGroups>& panel_;
  int32_t blocks_;
  int32_t burst_;
  __mmask16 last_valid_;
  alignas(64) int32_t sums_[kBurst][kGroups][kTileRows * 16];
};

template <Format kFormat, int kGroups>
void multiply_strip(const LinearI8& p, int32_t group, int32_t first, int32_t count) {
  constexpr bool kMinimum = weights::format_shape(kFormat).has_minimum;
  static_assert(chunk_shape(kFormat).subs == 1);
  Panel<kGroups> panel;
  for (int g = 0; g < kGroups; ++g)
    decode<kFormat>(p.weights.data + static_cast<size_t>(group + g) * p.weights.group_bytes, first,
                    count, g, panel);
  const int32_t valid = p.weights.rows - (group + kGroups - 1) * kGroupRows;
  Strip<kMinimum, kGroups> strip(panel, count,
                                 static_cast<__mmask16>(valid >= 16 ? 0xFFFF : (1U << valid) - 1));
  const auto rows_at = [&](int32_t row) {
    return Rows{p.x + static_cast<size_t>(row) * p.stride_x + first, p.stride_x};
  };
  float* out = p.out + static_cast<ptrdiff_t>(group) * kGroupRows;
  for (int32_t row = 0; row < p.rows; row += kTileRows)
    strip.add(rows_at(row), out + static_cast<size_t>(row) * p.stride_out, p.stride_out,
              first == 0);
}

// Whole tiles of rows.
template <Format kFormat>
void multiply_tiles(const LinearI8& p) {
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.set(kA + i, kTileRows, 32);
    config.set(kB + i, 8, 64);
  }
  for (int i = 0; i < 4; ++i) config.set(kC + i, kTileRows, 64);
  config.load();
  const int32_t tiles = p.weights.columns / 32;
  for (int32_t first = 0; first < tiles; first += kStripTiles) {
    const int32_t count = least(kStripTiles, tiles - first);
    int32_t group = p.group_begin;
    for (; group + 2 <= p.group_end; group += 2) multiply_strip<kFormat, 2>(p, group, first, count);
    if (group < p.group_end) multiply_strip<kFormat, 1>(p, group, first, count);
  }
  _tile_release();
}

// From how many rows on tiles are faster (measured: fewer do not pay for the decoded panel).
constexpr int32_t kLeastRows = 32;

template <Format kFormat>
void multiply(const LinearI8& p) {
  LinearI8 rest = p;
  if (p.rows >= kLeastRows) {
    LinearI8 whole = p;
    whole.rows = p.rows / kTileRows * kTileRows;
    multiply_tiles<kFormat>(whole);
    rest.rows -= whole.rows;
    rest.x += static_cast<size_t>(whole.rows) * p.stride_x;
    rest.out += static_cast<size_t>(whole.rows) * p.stride_out;
  }
  if (rest.rows > 0) linear_i8_avx512(rest);
}

}  // namespace

void linear_i8_amx(const LinearI8& p) {
  switch (p.weights.format) {
    case Format::kQ80:
      return multiply<Format::kQ80>(p);
    case Format::kQ40:
      return multiply<Format::kQ40>(p);
    case Format::kQ41:
      return multiply<Format::kQ41>(p);
    case Format::kQ50:
      return multiply<Format::kQ50>(p);
    case Format::kQ51:
      return multiply<Format::kQ51>(p);
    case Format::kQ4K:
      return multiply<Format::kQ4K>(p);
    case Format::kQ5K:
      return multiply<Format::kQ5K>(p);
    case Format::kIQ4NL:
      return multiply<Format::kIQ4NL>(p);
    case Format::kIQ4XS:
      return multiply<Format::kIQ4XS>(p);
    case Format::kMXFP4:
      return multiply<Format::kMXFP4>(p);
    case Format::kQ2K:
    case Format::kQ3K:
    case Format::kQ6K:
      return linear_i8_avx512(p);
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      return;  // the caller asked has_int8_kernel()
  }
}

}  // namespace tandem::ops::cpu
