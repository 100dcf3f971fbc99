// linear with int8 activations in tiles: 16 rows times 16 outputs times the 32 columns (16 where a
// format scales 16) that share a scale are one tdpbssd. The bits are linear_i8_avx512()'s, which
// takes what is not 16 rows: integer sums are exact, and what follows is the same in the same
// order.
//
// Bound, for 16 x 16 x 32: a product of two scales, a conversion and a multiply-add (two with a
// minimum) for each row are 48 (64) operations. They would take 24 cycles on two ports, but while
// tiles are in use (and some 20 cycles after) 512-bit floating point has one of the two, on
// Sapphire and Emerald Rapids: 48 (64) cycles, beside which tdpbssd (16), stores (16 of the sums, 4
// of running ones) and loads (two a cycle: 16 of the sums, 8 of the rows' scales, 8 of weights, 8
// of activations, 6 of scales and running sums) have room. vpdpbusd takes 88 (96). To have so few
// loads, two groups share a row's scales, so eight rows' running sums fill the registers; those of
// both halves of a tile change places in the first cache every few blocks.
//
// A strip of columns of two groups is decoded once for all rows, to signed codes, which lie as
// tdpbssd wants them already. While the sums of some blocks are scaled, the next blocks' products
// run.
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
constexpr int32_t kStep = 4;         // blocks whose sums wait to be scaled

constexpr int32_t least(int32_t x, int32_t y) { return x < y ? x : y; }

// What tile registers hold: activations, weights, sums.
constexpr int kA = 0;
constexpr int kB = 2;
constexpr int kC = 4;

// A strip of columns of kGroups groups. A block is what shares a scale: kSubs of them are a tile of
// 32 columns.
template <int kSubs, int kGroups>
struct alignas(64) Panel {
  static constexpr int32_t kBlocks = kStripTiles * kSubs;
  static constexpr size_t kBlockBytes = 512 / kSubs;
  int8_t codes[kGroups][kBlocks * kBlockBytes];
  float scale[kBlocks][kGroups][16];
  float minimum[kBlocks][kGroups][16];
};

template <Format kFormat, int kSubs, int kGroups>
void decode(const std::byte* group, int32_t first, int32_t count, int at,
            Panel<kSubs, kGroups>& panel) {
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
#pragma clang loop unroll(full)
    for (int sub = 0; sub < kSubs; ++sub) {
      store_floats(panel.scale[i * kSubs + sub][at], scales.scale[sub]);
      if constexpr (weights::format_shape(kFormat).has_minimum)
        store_floats(panel.minimum[i * kSubs + sub][at], scales.minimum[sub]);
    }
  }
}

// Sixteen rows of activations, from a strip's first column on.
struct Rows {
  const ActivationBlock* x;
  size_t stride;  // blocks
};

template <int kSubs, bool kMinimum, int kGroups>
class Strip {
 public:
  using StripPanel = Panel<kSubs, kGroups>;
  static constexpr int kPassRows = kTileRows / kGroups;

  Strip(const StripPanel& panel, int32_t blocks, __mmask16 last_valid)
      : panel_(panel), blocks_(blocks) {
    for (__mmask16& each : valid_) each = 0xFFFF;
    valid_[kGroups - 1] = last_valid;
    step_ = blocks % 4 != 0 && blocks % 3 == 0 ? 3 : kStep;
  }

  // Begins the products of the first rows.
  void begin(const Rows& rows) { products(rows, 0, least(step_, blocks_), 0); }

  // Adds the strip to 16 rows of out, from zero if `first`, and begins the products of the `next`
  // rows. begin() or this was called with `rows` before.
  void add(const Rows& rows, const Rows& next, float* out, size_t stride_out, bool first) {
    for (int32_t at = 0; at < blocks_; at += step_) {
      const int32_t own = least(step_, blocks_ - at);
      const bool last = at + own == blocks_;
      const int32_t follow = last ? 0 : at + own;
      const int32_t following = least(step_, blocks_ - follow);
      State state = {.rows = rows,
                     .next = last ? next : rows,
                     .at = at,
                     .follow = follow,
                     .out = out,
                     .stride_out = stride_out,
                     .zero = at == 0 && first,
                     .from_out = at == 0,
                     .to_out = last};
      if (own == following && own == 4) {
        interleaved<4>(state);
      } else if (own == following && own == 3) {
        interleaved<3>(state);
      } else {
        products(state.next, follow, following, 1 - turn_);
        for (int pass = 0; pass < kGroups; ++pass) scale_some(state, pass, own);
      }
      turn_ = 1 - turn_;
    }
  }

 private:
  struct State {
    Rows rows;
    Rows next;
    int32_t at;
    int32_t follow;
    float* out;
    size_t stride_out;
    bool zero;
    bool from_out;
    bool to_out;
  };

  static const std::byte* activations(const Rows& rows, int32_t block) {
    return reinterpret_cast<const std::byte*>(rows.x + block / kSubs) +
           static_cast<ptrdiff_t>(block % kSubs) * 16;
  }

  // Product of block `block` of the rows with group kGroup, to place `place` of turn `turn`.
  template <int kGroup, int kSlot>
  __attribute__((always_inline)) void product(const Rows& rows, int32_t block, int place,
                                              int turn) {
    constexpr int kTileA = kA + kSlot / kGroups % 2;
    constexpr int kTileB = kB + kSlot % 2;
    constexpr int kTileC = kC + kSlot % 4;
    if constexpr (kGroup == 0)
      _tile_loadd(kTileA, activations(rows, block), rows.stride * sizeof(ActivationBlock));
    _tile_loadd(kTileB, panel_.codes[kGroup] + static_cast<size_t>(block) * StripPanel::kBlockBytes,
                64);
    _tile_zero(kTileC);
    _tile_dpbssd(kTileC, kTileA, kTileB);
    _tile_stored(kTileC, sums_[turn][place][kGroup], 64);
  }

  void products(const Rows& rows, int32_t at, int32_t count, int turn) {
    for (int32_t i = 0; i < count; ++i) {
      product<0, 0>(rows, at + i, i, turn);
      if constexpr (kGroups == 2) product<1, 1>(rows, at + i, i, turn);
    }
  }

  using Sums = __m512[kPassRows][kGroups];

  __attribute__((always_inline)) void load(int pass, Sums& sum) const {
#pragma clang loop unroll(full)
    for (int m = 0; m < kPassRows; ++m) {
      const int row = pass * kPassRows + m;
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) {
        sum[m][g] = _mm512_load_ps(running_[row][g]);
      }
    }
  }

  __attribute__((always_inline)) void scale(const State& state, int pass, int32_t place,
                                            Sums& sum) const {
    const int32_t block = state.at + place;
    __m512 scale[kGroups];
    __m512 minimum[kGroups];
#pragma clang loop unroll(full)
    for (int g = 0; g < kGroups; ++g) {
      scale[g] = _mm512_load_ps(panel_.scale[block][g]);
      if constexpr (kMinimum) minimum[g] = _mm512_load_ps(panel_.minimum[block][g]);
    }
    const ActivationBlock* x = state.rows.x + pass * kPassRows * state.rows.stride + block / kSubs;
#pragma clang loop unroll(full)
    for (int m = 0; m < kPassRows; ++m) {
      const int row = pass * kPassRows + m;
      const ActivationBlock& own = x[m * state.rows.stride];
      const __m512 d = _mm512_set1_ps(own.d);
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums_[turn_][place][g] + row * 16));
        sum[m][g] = _mm512_fmadd_ps(_mm512_mul_ps(scale[g], d), dot, sum[m][g]);
      }
      if constexpr (kMinimum) {
        const __m512 total = _mm512_set1_ps(own.d_times_sum);
#pragma clang loop unroll(full)
        for (int g = 0; g < kGroups; ++g) sum[m][g] = _mm512_fmadd_ps(minimum[g], total, sum[m][g]);
      }
    }
  }

  __attribute__((always_inline)) void store(int pass, const Sums& sum) {
#pragma clang loop unroll(full)
    for (int m = 0; m < kPassRows; ++m) {
      const int row = pass * kPassRows + m;
#pragma clang loop unroll(full)
      for (int g = 0; g < kGroups; ++g) _mm512_store_ps(running_[row][g], sum[m][g]);
    }
  }

  void fetch(const State& state, int pass) {
    for (int row = pass * kPassRows; row < (pass + 1) * kPassRows; ++row) {
      for (int g = 0; g < kGroups; ++g) {
        __m512 value = _mm512_setzero_ps();
        asm("" : "+v"(value));  // else zeros become calls of memset, 3 % of a prefill
        if (!state.zero)
          value = _mm512_maskz_loadu_ps(valid_[g], state.out + row * state.stride_out + g * 16);
        _mm512_store_ps(running_[row][g], value);
      }
    }
  }
  void hand_out(const State& state, int pass) {
    for (int row = pass * kPassRows; row < (pass + 1) * kPassRows; ++row) {
      for (int g = 0; g < kGroups; ++g)
        _mm512_mask_storeu_ps(state.out + row * state.stride_out + g * 16, valid_[g],
                              _mm512_load_ps(running_[row][g]));
    }
  }

  void scale_some(const State& state, int pass, int32_t count) {
    if (state.from_out) fetch(state, pass);
    Sums sum;
    load(pass, sum);
    for (int32_t place = 0; place < count; ++place) scale(state, pass, place, sum);
    store(pass, sum);
    if (state.to_out) hand_out(state, pass);
  }

  template <int kCount, int kSlot>
  __attribute__((always_inline)) void slots(const State& state, int pass, Sums& sum) {
    product<kSlot % kGroups, kSlot>(state.next, state.follow + kSlot / kGroups, kSlot / kGroups,
                                    1 - turn_);
    scale(state, pass, kSlot % kCount, sum);
    if constexpr (kSlot % kCount + 1 < kCount) slots<kCount, kSlot + 1>(state, pass, sum);
  }

  template <int kCount>
  void interleaved(const State& state) {
    if (state.from_out) {
      for (int pass = 0; pass < kGroups; ++pass) fetch(state, pass);
    }
    Sums sum;
    load(0, sum);
    slots<kCount, 0>(state, 0, sum);
    store(0, sum);
    if constexpr (kGroups == 2) {
      load(1, sum);
      slots<kCount, kCount>(state, 1, sum);
      store(1, sum);
    }
    if (state.to_out) {
      for (int pass = 0; pass < kGroups; ++pass) hand_out(state, pass);
    }
  }

  const StripPanel& panel_;
  int32_t blocks_;
  int32_t step_;
  int turn_ = 0;
  __mmask16 valid_[kGroups];
  alignas(64) int32_t sums_[2][kStep][kGroups][kTileRows * 16];
  alignas(64) float running_[kTileRows][kGroups][16];
};

template <Format kFormat, int kGroups>
void multiply_strip(const LinearI8& p, int32_t group, int32_t first, int32_t count) {
  constexpr int kSubs = chunk_shape(kFormat).subs;
  constexpr bool kMinimum = weights::format_shape(kFormat).has_minimum;
  static_assert(kSubs == 1 || !kMinimum);
  Panel<kSubs, kGroups> panel;
  for (int g = 0; g < kGroups; ++g)
    decode<kFormat>(p.weights.data + static_cast<size_t>(group + g) * p.weights.group_bytes, first,
                    count, g, panel);
  const int32_t valid = p.weights.rows - (group + kGroups - 1) * kGroupRows;
  Strip<kSubs, kMinimum, kGroups> strip(
      panel, count * kSubs, static_cast<__mmask16>(valid >= 16 ? 0xFFFF : (1U << valid) - 1));
  const auto rows_at = [&](int32_t row) {
    return Rows{p.x + static_cast<size_t>(row) * p.stride_x + first, p.stride_x};
  };
  float* out = p.out + static_cast<ptrdiff_t>(group) * kGroupRows;
  strip.begin(rows_at(0));
  for (int32_t row = 0; row < p.rows; row += kTileRows) {
    const int32_t next = row + kTileRows < p.rows ? row + kTileRows : row;
    strip.add(rows_at(row), rows_at(next), out + static_cast<size_t>(row) * p.stride_out,
              p.stride_out, first == 0);
  }
}

// Whole tiles of rows.
template <Format kFormat>
void multiply_tiles(const LinearI8& p) {
  constexpr int kSubs = chunk_shape(kFormat).subs;
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.set(kA + i, kTileRows, 32 / kSubs);
    config.set(kB + i, 8 / kSubs, 64);
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
template <Format kFormat>
constexpr int32_t kLeastRows =
    chunk_shape(kFormat).subs == 1 && !weights::format_shape(kFormat).has_minimum ? 32 : 64;

template <Format kFormat>
void multiply(const LinearI8& p) {
  LinearI8 rest = p;
  if (p.rows >= kLeastRows<kFormat>) {
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
    case Format::kQ2K:
      // Two scales and two minimums for 32 columns: not faster in tiles.
      return linear_i8_avx512(p);
    case Format::kQ3K:
      return multiply<Format::kQ3K>(p);
    case Format::kQ4K:
      return multiply<Format::kQ4K>(p);
    case Format::kQ5K:
      return multiply<Format::kQ5K>(p);
    case Format::kQ6K:
      return multiply<Format::kQ6K>(p);
    case Format::kIQ4NL:
      return multiply<Format::kIQ4NL>(p);
    case Format::kIQ4XS:
      return multiply<Format::kIQ4XS>(p);
    case Format::kMXFP4:
      return multiply<Format::kMXFP4>(p);
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      return;  // the caller asked has_int8_kernel()
  }
}

}  // namespace tandem::ops::cpu
