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

// Products of kCount code vectors of both halves with kRows rows, as int32.
template <Format kFormat, int kRows, int kCount>
inline void panel_dot(const PanelTile<kFormat>& w, int first, const ActivationBlock* x,
                      size_t stride_x, __m256i (&sum)[kRows][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kRun = kSignedCodes<kFormat> ? 1 : run_length<largest_code<kFormat>(), kCount>();
#pragma clang loop unroll(full)
  for (int begin = first; begin < first + kCount; begin += kRun) {
    __m256i pairs[kRows][2];
#pragma clang loop unroll(full)
    for (int j = begin; j < begin + kRun; ++j) {
#pragma clang loop unroll(full)
      for (int m = 0; m < kRows; ++m) {
        const __m256i four =
            _mm256_set1_epi32(reinterpret_cast<const int32_t*>(x[m * stride_x].q)[j]);
#pragma clang loop unroll(full)
        for (int half = 0; half < 2; ++half) {
          __m256i product;
          if constexpr (kSignedCodes<kFormat>) {
            product =
                _mm256_maddubs_epi16(w.code[j][half], _mm256_sign_epi8(four, w.sign[j][half]));
          } else {
            product = _mm256_maddubs_epi16(w.code[j][half], four);
          }
          pairs[m][half] = j == begin ? product : _mm256_add_epi16(pairs[m][half], product);
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

// Adds `tiles` tiles (at most kPanelTiles) of one group to sums[row][16].
template <Format kFormat>
inline void multiply_panel(const std::byte* chunk, size_t tiles, const ActivationBlock* x,
                           size_t stride_x, int32_t rows, float* sums, size_t stride_sums) {
  constexpr ChunkShape kChunk = chunk_shape(kFormat);
  constexpr int kCount = 8 / kChunk.subs;
  constexpr bool kOneRun =
      !kSignedCodes<kFormat> && run_length<largest_code<kFormat>(), kCount>() == kCount;
  constexpr int kRows = kOneRun ? 4 : 2;
  PanelTile<kFormat> panel[kPanelTiles];
  for (size_t tile = 0; tile < tiles; ++tile) {
    decode_panel_tile<kFormat>(chunk + tile / static_cast<size_t>(kChunk.tiles) * kChunk.bytes,
                               static_cast<int>(tile % static_cast<size_t>(kChunk.tiles)),
                               panel[tile]);
  }
  const auto take = [&]<int kTake>() {
    for (; rows >= kTake; rows -= kTake) {
      multiply_panel_rows<kFormat, kTake>(panel, tiles, x, stride_x, sums, stride_sums);
      x += kTake * stride_x;
      sums += kTake * stride_sums;
    }
  };
  take.template operator()<kRows>();
  if constexpr (kRows > 2) take.template operator()<2>();
  take.template operator()<1>();
}

}  // namespace
}  // namespace tandem::ops::cpu
