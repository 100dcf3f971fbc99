// Four rows of activations and more on AVX2, where sixteen registers hold neither a tile's codes
// nor the sums of many rows: the codes of a strip of one group are decoded once into the first
// cache, then every load of codes serves several rows and every broadcast of activations both
// halves of the group. The running sums lie in memory and are touched once per tile.
//
// For 4-bit codes and 32 columns of 8 x 1 outputs: 8 vpmaddubsw, 7 vpaddw, vpmaddwd, a conversion,
// a product, a multiply-add (two with a minimum). With signed codes each vpmaddubsw needs a vpsignb
// before it and vpmaddwd and vpaddd behind it. The arithmetic of a row is that of add_tile(), in
// the same order: how many rows there are does not show in the bits.
//
// Included after bytes_avx2.h, tile.inl.h and linear_i8_avx2.cc's dot.
#pragma once

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kPanelFrom = 4;  // rows
constexpr size_t kPanelTiles = 8;

template <Format kFormat>
struct PanelTile {
  static constexpr int kSubs = chunk_shape(kFormat).subs;
  static constexpr bool kSigned = kSignedCodes<kFormat>;
  __m256i code[8][2];  // magnitudes when signed
  __m256i sign[kSigned ? 8 : 1][2];
  __m256 scale[kSubs][2];
  __m256 minimum[kSubs][2];
};

template <Format kFormat>
inline void decode_panel_tile(const std::byte* chunk, int tile, PanelTile<kFormat>& out) {
  const std::byte* codes = tile_codes<kFormat>(chunk, tile);
#pragma clang loop unroll(full)
  for (int part = 0; part < 2; ++part) {
#pragma clang loop unroll(full)
    for (int j = 0; j < 8; ++j) {
      const __m256i code = load_code<kFormat, kSignedCodes<kFormat>>(codes, j, part);
      if constexpr (kSignedCodes<kFormat>) {
        out.code[j][part] = _mm256_abs_epi8(code);
        out.sign[j][part] = code;
      } else {
        out.code[j][part] = code;
      }
    }
    const TileScales<kFormat> scales = load_scales<kFormat>(chunk, tile, part);
#pragma clang loop unroll(full)
    for (int sub = 0; sub < TileScales<kFormat>::kSubs; ++sub) {
      out.scale[sub][part] = scales.scale[sub];
      if constexpr (weights::format_shape(kFormat).has_minimum)
        out.minimum[sub][part] = scales.minimum[sub];
    }
  }
}

// Otherwise the compiler takes all columns of one sum before the next and spills everything that
// the sums share: half the rate.
inline void keep_here(__m256i& sum) { asm volatile("" : "+x"(sum)); }

// Products of kCount code vectors of both halves with kRows rows, as int32.
template <Format kFormat, int kRows, int kCount>
inline void panel_dot(const PanelTile<kFormat>& w, int first, const ActivationBlock* x,
                      size_t stride_x, __m256i (&sum)[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kSigns = kSignedCodes<kFormat> ? 8 : 1;
  constexpr int kRun = kSignedCodes<kFormat> ? 1 : run_length<largest_code<kFormat>(), kCount>();
#pragma clang loop unroll(full)
  for (int begin = first; begin < first + kCount; begin += kRun) {
    __m256i pairs[kRows][2];
#pragma clang loop unroll(full)
    for (int j = begin; j < begin + kRun; ++j) {
      __m256i code[2] = {w.code[j][0], w.code[j][1]};
      keep_here(code[0]);
      keep_here(code[1]);
#pragma clang loop unroll(full)
      for (int m = 0; m < kRows; ++m) {
        const __m256i four =
            _mm256_set1_epi32(reinterpret_cast<const int32_t*>(x[m * stride_x].q)[j]);
#pragma clang loop unroll(full)
        for (int half = 0; half < 2; ++half) {
          const __m256i product = _mm256_maddubs_epi16(
              code[half],
              kSignedCodes<kFormat> ? _mm256_sign_epi8(four, w.sign[j % kSigns][half]) : four);
          pairs[m][half] = j == begin ? product : _mm256_add_epi16(pairs[m][half], product);
          keep_here(pairs[m][half]);
        }
      }
    }
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
      for (int half = 0; half < 2; ++half) {
        const __m256i wide = _mm256_madd_epi16(pairs[m][half], ones);
        sum[m][half] = begin == first ? wide : _mm256_add_epi32(sum[m][half], wide);
      }
    }
  }
}

template <Format kFormat, int kRows>
inline void multiply_panel_rows(const PanelTile<kFormat>* panel, size_t tiles,
                                const ActivationBlock* x, size_t stride_x, float* acc,
                                size_t stride_acc) {
  constexpr int kSubs = PanelTile<kFormat>::kSubs;
  constexpr int kZero = kSignedCodes<kFormat> ? 0 : unsigned_zero<kFormat>();
  for (size_t tile = 0; tile < tiles; ++tile, ++x) {
    const PanelTile<kFormat>& w = panel[tile];
#pragma clang loop unroll(full)
    for (int sub = 0; sub < kSubs; ++sub) {
      __m256i sum[kRows][2];
      panel_dot<kFormat, kRows, 8 / kSubs>(w, sub * (8 / kSubs), x, stride_x, sum);
#pragma clang loop unroll(full)
      for (int m = 0; m < kRows; ++m) {
        const ActivationBlock& block = x[m * stride_x];
#pragma clang loop unroll(full)
        for (int half = 0; half < 2; ++half) {
          __m256i exact = sum[m][half];
          if constexpr (kZero != 0)
            exact = _mm256_add_epi32(exact, zero_share<kZero, kSubs>(block, sub));
          float* at = acc + m * stride_acc + half * 8;
          const __m256 scale = _mm256_mul_ps(w.scale[sub][half], _mm256_set1_ps(block.d));
          __m256 value = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(exact), _mm256_loadu_ps(at));
          if constexpr (weights::format_shape(kFormat).has_minimum) {
            const float q_sum = kSubs == 1 ? block.d_times_sum
                                           : block.d * static_cast<float>(-block.minus_half[sub]);
            value = _mm256_fmadd_ps(w.minimum[sub][half], _mm256_set1_ps(q_sum), value);
          }
          _mm256_storeu_ps(at, value);
        }
      }
    }
  }
}

// Adds `tiles` decoded tiles to sums[row][16].
template <Format kFormat>
inline void multiply_panel(const PanelTile<kFormat>* panel, size_t tiles, const ActivationBlock* x,
                           size_t stride_x, int32_t rows, float* sums) {
  constexpr int kCount = 8 / chunk_shape(kFormat).subs;
  constexpr bool kOneRun =
      !kSignedCodes<kFormat> && run_length<largest_code<kFormat>(), kCount>() == kCount;
  const auto take = [&]<int kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      multiply_panel_rows<kFormat, kRows>(panel, tiles, x, stride_x, sums, kGroupRows);
      x += kRows * stride_x;
      sums += kRows * kGroupRows;
    }
  };
  // Sums of several runs are twice as many registers.
  if constexpr (kOneRun) take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

// All rows times one group of which `valid` rows are outputs.
template <Format kFormat>
inline void multiply_panels(const LinearI8& p, const std::byte* group, int32_t valid, float* out) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr int32_t kRowStep = 32;
  alignas(64) float sums[kRowStep * kGroupRows];
  PanelTile<kFormat> panel[kPanelTiles];
  const auto all_tiles = static_cast<size_t>(p.weights.columns / 32);
  for (size_t first = 0; first < all_tiles; first += kPanelTiles) {
    const size_t tiles = all_tiles - first < kPanelTiles ? all_tiles - first : kPanelTiles;
    const std::byte* chunk = group + first / static_cast<size_t>(kChunk.tiles) * kChunk.bytes;
    for (size_t tile = 0; tile < tiles; ++tile) {
      // The next strip comes from memory while this one is multiplied.
      constexpr size_t kTileBytes = kChunk.bytes / static_cast<size_t>(kChunk.tiles);
      const std::byte* next = chunk + (tile + kPanelTiles) * kTileBytes;
      for (size_t i = 0; i < kTileBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T0);
      decode_panel_tile<kFormat>(chunk + tile / static_cast<size_t>(kChunk.tiles) * kChunk.bytes,
                                 static_cast<int>(tile % static_cast<size_t>(kChunk.tiles)),
                                 panel[tile]);
    }
    for (int32_t row = 0; row < p.rows; row += kRowStep) {
      const int32_t rows = p.rows - row < kRowStep ? p.rows - row : kRowStep;
      float* to = out + row * p.stride_out;
      for (int32_t i = 0; i < 2 * rows; ++i) {
        const int32_t lane = i % 2 * kPartRows;
        const float* from = to + i / 2 * p.stride_out + lane;
        store_floats(sums + i * kPartRows, first == 0 || lane >= valid
                                               ? splat_float(0)
                                               : load_some_floats(from, valid - lane));
      }
      multiply_panel<kFormat>(panel, tiles, p.x + row * p.stride_x + first, p.stride_x, rows, sums);
      for (int32_t i = 0; i < 2 * rows; ++i) {
        const int32_t lane = i % 2 * kPartRows;
        if (lane < valid)
          store_some_floats(to + i / 2 * p.stride_out + lane, load_floats(sums + i * kPartRows),
                            valid - lane);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
