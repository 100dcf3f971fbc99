// Attention in AMX's tiles: scores and weighted values of up to 32 pairs are products of BF16, with
// sums in float32; the softmax between them is AVX-512's work.
//
// Spans, their order and their merge are attention.inl.h's. What is rounded: the queries, once and
// after they were scaled (log2(e) included, so that weights are powers of two of the scores and
// nothing is multiplied in between; before or after makes no difference to the error, 2^-8 of each
// value at most), and the weights. A span's total is the sum of its rounded weights, so that what
// values have in common is kept exactly, whatever the rounding; with inline scales, which are
// multiplied into the weights before that, it is the sum of the weights themselves. Values of pages
// are exact. Keys and values are laid out for the tiles once for all pairs
// (attention_pairs_amx.inl.h).
//
// Why the bits depend on the position only: a row of a product depends on its own row of A, and
// sums over dims (over tokens) run in order, 32 at a time from multiples of 32; weights outside of
// what a row sees are exactly 0 (and values finite). Prefill and decode, one row or 32, are the
// same sums: a few pairs take them by AVX-512 (attention_few_amx.inl.h), in the order of the tiles'
// instruction.
//
// Per 1,024 elements of a page and 32 pairs: 32 stores and permutations, 8 + 8 lines of tiles, 64
// cycles of products. Per 16 weights: some 14 vector operations.
//
// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/simd_avx512.h"
#include "ops/cpu/attention_few_amx.inl.h"
#include "ops/cpu/attention_merge.inl.h"
// clang-format on
#include "ops/cpu/amx.h"
#include "ops/cpu/attention_pairs_amx.inl.h"
#include "ops/cpu/avx512.h"
#include "ops/cpu/tiles_amx.h"

namespace tandem::ops::cpu {
namespace {

constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;
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

// Dims of a query, padded with zeros to whole steps.
inline int32_t padded(const AttentionTile& t) {
  return (t.head_dim + kDepth - 1) / kDepth * kDepth;
}

inline uint16_t* queries_of(const Scratch& s) { return reinterpret_cast<uint16_t*>(s.q); }

// `factor` is that of the codes.
inline void round_queries(const AttentionTile& t, const Scratch& s, float factor) {
  const int32_t dim = padded(t);
  const __m512 scale = _mm512_set1_ps(t.scale * factor * kLog2E);
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const float* q = query_of(t, i);
    uint16_t* out = queries_of(s) + i * dim;
    for (int32_t d = 0; d < dim; d += kDepth) {
      const int32_t left = t.head_dim - d;
      const auto mask = left >= kDepth ? ~0U : (1U << left) - 1;
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), q + d);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), q + d + 16);
      const __m512bh both =
          _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
      _mm512_storeu_si512(out + d, reinterpret_cast<const __m512i&>(both));
    }
  }
}

template <typename Element>
inline void lay_out_keys(const AttentionTile& t, const Span& span, int32_t c, uint16_t* panel) {
  const RawOf<Element>* keys = keys_at<Element>(t, span.begin + c);
  const auto stride = static_cast<size_t>(t.block_tokens);
  const std::byte* ahead = ahead_of<Element>(t, span, c, true);
  const int32_t rows = padded(t) / 2;
  if constexpr (__is_same(Element, BF16)) {
    stride == 16 ? pair_keys<16>(keys, stride, t.head_dim, rows, ahead, panel)
                 : pair_keys<0>(keys, stride, t.head_dim, rows, ahead, panel);
  } else {
    const auto* codes = reinterpret_cast<const uint8_t*>(keys);
    stride == 16 ? pair_codes<Element, 16>(codes, stride, t.head_dim, rows, ahead, panel)
                 : pair_codes<Element, 0>(codes, stride, t.head_dim, rows, ahead, panel);
  }
}

// Scores of columns [c, c + 16 * kColumnTiles), laid out in `panel`.
template <int kRowTiles, int kColumnTiles>
inline void score_columns(const Scratch& s, int32_t dim, int32_t c, const uint16_t* panel) {
  const auto* q = reinterpret_cast<const std::byte*>(queries_of(s));
  const auto* keys = reinterpret_cast<const std::byte*>(panel);
  clear_tiles<kRowTiles, kColumnTiles>();
  for (int32_t d = 0; d < dim; d += kDepth)
    multiply<kRowTiles, kColumnTiles>(q + d * 2, dim * 2, keys + d * 32, dim * 32);
  store_tiles<kRowTiles, kColumnTiles>(s.scores + c, kSpanTokens);
}

// The next columns are laid out while the ones before are multiplied: a tile is loaded from the
// first cache level, not from what waits to be written there.
template <typename Element, int kRowTiles>
inline void score(const AttentionTile& t, const Scratch& s, const Span& span) {
  uint16_t* panels[2] = {reinterpret_cast<uint16_t*>(s.turned),
                         reinterpret_cast<uint16_t*>(s.span)};
  const int32_t dim = padded(t);
  const auto lay_out = [&](int32_t c) {
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t at = c + 16 * i;
      if (at >= span.first && at < span.count)
        lay_out_keys<Element>(t, span, at, panels[c / 32 % 2] + i * dim * 16);
    }
  };
  int32_t c = span.first / 32 * 32;
  lay_out(c);
  for (; c < span.count; c += 32) {
    if (c + 32 < span.count) lay_out(c + 32);
    score_columns<kRowTiles, 2>(s, dim, c, panels[c / 32 % 2]);
  }
}

// 2^x with an error of 2^-13 (the weights that it gives are rounded to 2^-8), 2^0 = 1 exactly.
inline __m512 exp2_of(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0782679702F), r, _mm512_set1_ps(0.226307682F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695424348F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, x);
}

// One pair's softmax over columns [first, last) of a span, 32 at a time: scores become weights in
// BF16 at their beginning. What stands beside them is masked, never computed with.
struct Softmax {
  float* scores;
  const float* key_scales;    // null: none
  const float* value_scales;  // null: none
  int32_t first;
  int32_t last;
  __m512 peaks = _mm512_set1_ps(kMinusInfinity);
  __m512 totals = _mm512_setzero_ps();

  uint32_t mask_of(int32_t c) const {
    uint32_t mask = ~0U;
    if (c < first) mask <<= first - c;
    if (last - c < 32) mask &= (1U << (last - c)) - 1;
    return mask;
  }

  __m512 score_at(int32_t c) const {
    const __m512 score = _mm512_loadu_ps(scores + c);
    return key_scales == nullptr ? score : _mm512_mul_ps(score, _mm512_loadu_ps(key_scales + c));
  }

  void raise_peaks(int32_t c, uint32_t mask) {
    peaks = _mm512_mask_max_ps(peaks, static_cast<__mmask16>(mask), peaks, score_at(c));
    peaks = _mm512_mask_max_ps(peaks, static_cast<__mmask16>(mask >> 16), peaks, score_at(c + 16));
  }

  template <bool kScaledValues>
  void weigh(int32_t c, uint32_t mask, __m512 peak) {
    __m512 low = _mm512_maskz_mov_ps(static_cast<__mmask16>(mask),
                                     exp2_of(_mm512_sub_ps(score_at(c), peak)));
    __m512 high = _mm512_maskz_mov_ps(static_cast<__mmask16>(mask >> 16),
                                      exp2_of(_mm512_sub_ps(score_at(c + 16), peak)));
    if constexpr (kScaledValues) {
      totals = _mm512_add_ps(totals, _mm512_add_ps(low, high));
      low =
          _mm512_maskz_mul_ps(static_cast<__mmask16>(mask), low, _mm512_loadu_ps(value_scales + c));
      high = _mm512_maskz_mul_ps(static_cast<__mmask16>(mask >> 16), high,
                                 _mm512_loadu_ps(value_scales + c + 16));
    }
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    if constexpr (!kScaledValues) {
      const __m512i ones = _mm512_set1_epi16(0x3F80);
      totals = _mm512_dpbf16_ps(totals, both, reinterpret_cast<const __m512bh&>(ones));
    }
    _mm512_storeu_si512(reinterpret_cast<uint16_t*>(scores) + c,
                        reinterpret_cast<const __m512i&>(both));
  }

  template <bool kScaledValues>
  float run(float& total) {
    const int32_t begin = first / 32 * 32;
    const int32_t whole = first % 32 == 0 ? begin : begin + 32;
    const int32_t last_whole = last / 32 * 32;
    if (whole > begin) raise_peaks(begin, mask_of(begin));
    for (int32_t c = whole; c < last_whole; c += 32) raise_peaks(c, ~0U);
    if (last > last_whole && last_whole >= whole) raise_peaks(last_whole, mask_of(last_whole));
    const float peak = _mm512_reduce_max_ps(peaks);
    const __m512 wide = _mm512_set1_ps(peak);
    if (whole > begin) weigh<kScaledValues>(begin, mask_of(begin), wide);
    for (int32_t c = whole; c < last_whole; c += 32) weigh<kScaledValues>(c, ~0U, wide);
    if (last > last_whole && last_whole >= whole)
      weigh<kScaledValues>(last_whole, mask_of(last_whole), wide);
    total = _mm512_reduce_add_ps(totals);
    return peak;
  }
};

// Zeros for weights [from, to), whole 32s.
inline void clear_weights(float* scores, int32_t from, int32_t to) {
  auto* weights = reinterpret_cast<uint16_t*>(scores);
  for (int32_t c = from; c < to; c += 32) _mm512_storeu_si512(weights + c, _mm512_setzero_si512());
}

// Turns scores into weights; peak and total become the span's. `scales`: inline ones of keys and
// values, kSpanTokens each.
template <bool kInline>
inline void soften(const AttentionTile& t, const Scratch& s, const Span& span,
                   const float* scales) {
  const int32_t begin = span.first / 32 * 32;
  const int32_t end = (span.count + 31) / 32 * 32;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    float* scores = s.scores + i * kSpanTokens;
    if (!sees(t, span, i)) {
      clear_weights(scores, begin, end);
      continue;
    }
    Softmax row = {.scores = scores,
                   .key_scales = kInline ? scales : nullptr,
                   .value_scales = kInline ? scales + kSpanTokens : nullptr,
                   .first = pair_start(t, i) - span.begin,
                   .last = pair_position(t, i) + 1 - span.begin};
    if (row.first < 0) row.first = 0;
    if (row.last > span.count) row.last = span.count;
    if (t.softcap > 0) {
      const int32_t from = row.first / 16 * 16;
      const int32_t columns = (row.last - from + 15) / 16 * 16;
      for (int32_t c = from; kInline && c < from + columns; c += 16)
        _mm512_storeu_ps(scores + c, row.score_at(c));
      row.key_scales = nullptr;
      soft_cap(t.softcap * kLog2E, columns, scores + from);
    }
    // Weights are written over scores that were read: nothing beside [first, last) before the end.
    float total = 0;
    s.peak[i] = row.run<kInline>(total) * kLn2;
    s.total[i] = total;
    clear_weights(scores, begin, row.first / 32 * 32);
    clear_weights(scores, (row.last + 31) / 32 * 32, end);
  }
}

// Sixteen tokens' values, those in [first, last) of them seen by anybody.
template <typename Element>
struct ValueColumn {
  const RawOf<Element>* values = nullptr;
  const std::byte* ahead = nullptr;  // as many bytes to ask for
  int32_t first = 0;
  int32_t last = 0;
};

template <typename Element>
inline void find_columns(const AttentionTile& t, const Span& span, ValueColumn<Element>* columns) {
  const int32_t seen = span.first_seen();
  for (int32_t c = span.first; c < span.count; c += 16) {
    ValueColumn<Element>& column = columns[c / 16];
    column.values = reinterpret_cast<const RawOf<Element>*>(values_at<Element>(t, span.begin + c));
    column.ahead = ahead_of<Element>(t, span, c, false);
    column.first = seen > c ? seen - c : 0;
    column.last = span.count - c < 16 ? span.count - c : 16;
  }
}

// Lays dims [d, d + 32) of a column's values out: a row of B for every two tokens and sixteen dims,
// 16 rows from one sixteen dims to the next; zeros for tokens that nobody sees.
template <typename Element>
inline void lay_out_values(const AttentionTile& t, const ValueColumn<Element>& column, int32_t d,
                           uint16_t* panel) {
  using Raw = RawOf<Element>;
  constexpr int32_t kNext = kRows * 32;
  const auto line = static_cast<size_t>(t.head_dim);
  if (column.first == 0 && column.last == 16 && d + 32 <= t.head_dim) {
    const Raw* values = column.values + d;
    const std::byte* ahead = column.ahead + d * sizeof(Element);
#pragma clang loop unroll_count(2)
    for (int i = 0; i < 8; ++i) {
      ask_for(ahead);
      ask_for(ahead + line * sizeof(Element));
      pair_values<Element>(values, values + line, panel, panel + kNext);
      values += 2 * line;
      ahead += 2 * line * sizeof(Element);
      panel += 32;
    }
    return;
  }
  const int32_t count = t.head_dim - d < 32 ? t.head_dim - d : 32;
  for (int32_t token = 0; token < 16; token += 2, panel += 32) {
    alignas(64) __remove_cv(Raw) pair[2][32] = {};
    for (int32_t i = 0; i < 2; ++i) {
      if (token + i < column.first || token + i >= column.last) continue;
      __builtin_memcpy(pair[i], column.values + (token + i) * line + d, count * sizeof(Raw));
    }
    pair_values<Element>(pair[0], pair[1], panel, panel + kNext);
  }
}

// Weighted values of dims [d, d + 16 * kColumnTiles); as above, 32 tokens are laid out ahead.
template <typename Element, int kRowTiles, int kColumnTiles>
inline void weigh_dims(const AttentionTile& t, const Scratch& s, const Span& span,
                       const ValueColumn<Element>* columns, int32_t d) {
  constexpr int32_t kTileWords = kRows * 32;
  auto* const panels = reinterpret_cast<uint16_t*>(s.panel);
  const auto panel_of = [&](int32_t c) { return panels + c / 32 % 2 * 4 * kTileWords; };
  const auto lay_out = [&](int32_t c) {
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t i = 0; i < kColumnTiles; i += 2)
        lay_out_values<Element>(t, columns[c / 16 + half], d + 16 * i,
                                panel_of(c) + i * kTileWords + half * kTileWords / 2);
    }
  };
  const auto* weights = reinterpret_cast<const std::byte*>(s.scores);
  int32_t c = span.first / 32 * 32;
  lay_out(c);
  clear_tiles<kRowTiles, kColumnTiles>();
  for (; c < span.count; c += 32) {
    if (c + 32 < span.count) lay_out(c + 32);
    multiply<kRowTiles, kColumnTiles>(weights + c * 2, kSpanTokens * sizeof(float),
                                      reinterpret_cast<const std::byte*>(panel_of(c)),
                                      kTileWords * 2);
  }
  store_tiles<kRowTiles, kColumnTiles>(s.span + d, s.dim);
}

template <typename Element, int kRowTiles>
inline void weigh_values(const AttentionTile& t, const Scratch& s, const Span& span) {
  ValueColumn<Element> columns[kColumns];
  find_columns<Element>(t, span, columns);
  const auto dims = static_cast<int32_t>(s.dim);
  int32_t d = 0;
  if constexpr (kRowTiles == 1) {
    for (; d + 64 <= dims; d += 64) weigh_dims<Element, kRowTiles, 4>(t, s, span, columns, d);
  }
  for (; d + 32 <= dims; d += 32) weigh_dims<Element, kRowTiles, 2>(t, s, span, columns, d);
  if (d < dims) weigh_dims<Element, kRowTiles, 1>(t, s, span, columns, d);
}

// The rounded queries as float32 in s.turned, [pair][dim].
inline void widen_queries(const AttentionTile& t, const Scratch& s) {
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const uint16_t* from = queries_of(s) + i * padded(t);
    for (int32_t d = 0; d < t.head_dim; d += 16)
      store(s.turned + i * s.dim + d, load_bf16(from + d));
  }
}

template <typename Element, bool kInline = false>
void attend(const AttentionTile& t) {
  constexpr float kFactor = LoaderFor<Element>::kFactor;
  const bool few = __is_same(Element, BF16) && t.pair_count <= kFewPairs && t.head_dim % 16 == 0 &&
                   t.head_dim <= kMostFewDims;
  const Scratch s = carve(t);
  round_queries(t, s, kFactor);
  Running running[kTilePairs];
  clear_sums(t, s);
  few ? widen_queries(t, s) : configure(t.pair_count);
  const Range range = range_of(t);
  for (int32_t begin = range.begin; begin < range.end; begin += kSpanTokens) {
    const Span span = span_at(range, begin);
    few                    ? score_few(t, s, span)
    : t.pair_count > kRows ? score<Element, 2>(t, s, span)
                           : score<Element, 1>(t, s, span);
    if constexpr (kInline) {
      gather_scales<Element>(t, span, t.k_offset, s.scales);
      gather_scales<Element>(t, span, t.v_offset, s.scales + kSpanTokens);
    }
    soften<kInline>(t, s, span, s.scales);
    few                    ? weigh_few(t, s, span)
    : t.pair_count > kRows ? weigh_values<Element, 2>(t, s, span)
                           : weigh_values<Element, 1>(t, s, span);
    for (int32_t i = 0; i < t.pair_count; ++i) {
      if (sees(t, span, i)) take_span(t, s, begin, i, running[i]);
    }
  }
  if (!few) _tile_release();
  if (in_parts(t)) return;
  for (int32_t i = 0; i < t.pair_count; ++i)
    finish_pair(t, i, s.sum + i * s.dim, running[i].total, t.value_scale * kFactor);
}

}  // namespace

void attention_amx(const AttentionTile& tile) {
  if (tile.block_tokens % 16 != 0) return attention_avx512(tile);
  switch (tile.dtype) {
    case KvDtype::kF32:
    case KvDtype::kF16:
      return attention_avx512(tile);
    case KvDtype::kBF16:
      return attend<BF16>(tile);
    case KvDtype::kFp8Static:
      return attend<E4m3>(tile);
    case KvDtype::kFp8Inline:
      return attend<E4m3, true>(tile);
    case KvDtype::kInt8Inline:
      return attend<I8, true>(tile);
  }
}

}  // namespace tandem::ops::cpu
