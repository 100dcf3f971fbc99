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
// A prompt's tiles are wider than 32 pairs: keys and values of a span are laid out once for all of
// them and multiplied 32 pairs at a time.
//
// Per 1,024 elements of a page and tile: 32 stores and permutations, 8 + 8 lines of tiles, 64
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
#include "ops/cpu/attention_products_amx.inl.h"
#include "ops/cpu/attention_softmax_amx.inl.h"
#include "ops/cpu/avx512.h"

namespace tandem::ops::cpu {
namespace {

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
  store_tiles<kRowTiles, kColumnTiles>(s.scores + c, kScoreStride);
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
    multiply<kRowTiles, kColumnTiles>(weights + c * 2, kScoreStride * sizeof(float),
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

template <typename Element, bool kInline>
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

// One span's keys and values for the tiles, behind the scratch of 32 pairs: columns of sixteen keys
// as lay_out_keys makes them; for every 32 tokens a tile for each sixteen dims.
struct Panels {
  uint16_t* keys;
  uint16_t* values;
};

// 32 pairs of a wide tile.
struct Part {
  AttentionTile tile;
  Scratch scratch;  // q and sum are its own
  Range range;
  Running running[kTilePairs];
};

template <typename Element>
inline void lay_out_span(const AttentionTile& t, const Span& span, const Panels& panels) {
  const int32_t dim = padded(t);
  for (int32_t c = span.first; c < span.count; c += 16)
    lay_out_keys<Element>(t, span, c, panels.keys + c * dim);
  ValueColumn<Element> columns[kColumns];
  find_columns<Element>(t, span, columns);
  for (int32_t c = span.first / 32 * 32; c < span.count; c += 32) {
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t d = 0; d < t.head_dim; d += 32)
        lay_out_values<Element>(t, columns[c / 16 + half], d,
                                panels.values + c * dim + d * 32 + half * kRows * 16);
    }
  }
}

// The weighted values of a span that is laid out.
inline void weigh_panels(const Part& part, const Span& span, const Panels& panels) {
  const Scratch& s = part.scratch;
  const auto* weights = reinterpret_cast<const std::byte*>(s.scores);
  const int32_t dim = padded(part.tile);
  const auto dims = static_cast<int32_t>(s.dim);
  const auto weigh = [&]<int kColumnTiles>(int32_t d) {
    clear_tiles<2, kColumnTiles>();
    for (int32_t c = span.first / 32 * 32; c < span.count; c += 32)
      multiply<2, kColumnTiles>(
          weights + c * 2, kScoreStride * sizeof(float),
          reinterpret_cast<const std::byte*>(panels.values + c * dim + d * 32), kRows * 64);
    store_tiles<2, kColumnTiles>(s.span + d, s.dim);
  };
  int32_t d = 0;
  for (; d + 32 <= dims; d += 32) weigh.template operator()<2>(d);
  if (d < dims) weigh.template operator()<1>(d);
}

template <typename Element, bool kInline>
void attend_wide(const AttentionTile& t) {
  Scratch s = carve(t);
  const int32_t dim = padded(t);
  const Panels panels = {
      reinterpret_cast<uint16_t*>(s.scales + 2 * kSpanTokens),
      reinterpret_cast<uint16_t*>(s.scales + 2 * kSpanTokens) + kSpanTokens * dim};
  auto* own = reinterpret_cast<float*>(panels.values + kSpanTokens * dim);
  Part parts[kWidePairs / kTilePairs];
  const int32_t count = (t.pair_count + kTilePairs - 1) / kTilePairs;
  for (int32_t i = 0; i < count; ++i) {
    Part& part = parts[i];
    const int32_t first = i * kTilePairs;
    const int32_t left = t.pair_count - first;
    part.tile = part_of(t, first, left < kTilePairs ? left : kTilePairs);
    part.range = range_of(part.tile);
    s.q = own;
    s.sum = own + kTilePairs * dim / 2;
    own += kTilePairs * (dim / 2 + s.dim);
    part.scratch = s;
    round_queries(part.tile, s, LoaderFor<Element>::kFactor);
    clear_sums(part.tile, s);
  }
  // Rows beyond the last pair are computed of whatever is there, and looked at by nobody.
  configure(kTilePairs);
  const Range range = range_of(t);
  for (int32_t begin = range.begin; begin < range.end; begin += kSpanTokens) {
    const Span whole = span_at(range, begin);
    lay_out_span<Element>(t, whole, panels);
    if constexpr (kInline) {
      gather_scales<Element>(t, whole, t.k_offset, s.scales);
      gather_scales<Element>(t, whole, t.v_offset, s.scales + kSpanTokens);
    }
    for (int32_t i = 0; i < count; ++i) {
      Part& part = parts[i];
      if (begin < part.range.begin || begin >= part.range.end) continue;
      const Span span = span_at(part.range, begin);
      for (int32_t c = span.first / 32 * 32; c < span.count; c += 32)
        score_columns<2, 2>(part.scratch, dim, c, panels.keys + c * dim);
      soften<kInline>(part.tile, part.scratch, span, s.scales);
      weigh_panels(part, span, panels);
      for (int32_t pair = 0; pair < part.tile.pair_count; ++pair) {
        if (sees(part.tile, span, pair))
          take_span(part.tile, part.scratch, begin, pair, part.running[pair]);
      }
    }
  }
  _tile_release();
  if (in_parts(t)) return;
  for (int32_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    for (int32_t pair = 0; pair < part.tile.pair_count; ++pair)
      finish_pair(part.tile, pair, part.scratch.sum + pair * s.dim, part.running[pair].total,
                  t.value_scale * LoaderFor<Element>::kFactor);
  }
}

template <typename Element, bool kInline = false>
void attend_all(const AttentionTile& t) {
  t.pair_count > kTilePairs ? attend_wide<Element, kInline>(t) : attend<Element, kInline>(t);
}

// What tiles are not used for.
void attend_avx512(const AttentionTile& t) {
  for (int32_t first = 0; first < t.pair_count; first += kTilePairs) {
    const int32_t left = t.pair_count - first;
    attention_avx512(part_of(t, first, left < kTilePairs ? left : kTilePairs));
  }
}

}  // namespace

void attention_amx(const AttentionTile& tile) {
  if (tile.block_tokens % 16 != 0) return attend_avx512(tile);
  switch (tile.dtype) {
    case KvDtype::kF32:
    case KvDtype::kF16:
      return attend_avx512(tile);
    case KvDtype::kBF16:
      return attend_all<BF16>(tile);
    case KvDtype::kFp8Static:
      return attend_all<E4m3>(tile);
    case KvDtype::kFp8Inline:
      return attend_all<E4m3, true>(tile);
    case KvDtype::kInt8Inline:
      return attend_all<I8, true>(tile);
  }
}

}  // namespace tandem::ops::cpu
