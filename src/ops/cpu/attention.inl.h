// Paged attention for a tile of (row, query head) pairs that share a KV head: prefill chunks and
// decode steps alike.
//
// K lies in a page as [dim][token], so sixteen neighbouring tokens are one vector and a query's
// dims its factors: no horizontal sums, and each K and V vector is widened once for all pairs of a
// register tile (attention_tile.inl.h). Per span of kSpanTokens positions: scores, their maximum,
// exponentials, weighted values; then a merge into the running result. With a window, columns
// before the first position that any pair of the tile sees are left out, sixteen at a time.
//
// Why the bits depend on the position only: scores are independent lanes, each summed in order of
// dim; a span always starts at a multiple of kSpanTokens; masked scores become weights of exactly
// 0, which change neither a sum of weights nor a weighted sum (so leaving them out changes nothing
// either); spans merge in order, whether at once or later out of `partials`. Cost per pair and
// position: 2 * dim multiply-adds.
//
// Narrow pages are never expanded: codes widen in the loader, once for all pairs. What their values
// are to be multiplied with is folded into the query and the result (a static scale, and the 256 of
// load_e4m3), or into the scores and the weights of a token (inline scales): a multiplication for
// each pair and position, not for each value. Per sixteen values and tile: one load and 2
// operations (BF16), 4 (e4m3), 2 (int8) beside the pairs' multiply-adds. Included after the simd
// header.
#pragma once

#include "ops/cpu/attention_merge.inl.h"
#include "ops/cpu/elementwise.inl.h"

namespace tandem::ops::cpu {
namespace {

// Multiplies each column of the scores (or weights) by its scale.
inline void scale_columns(const AttentionTile& t, const Scratch& s, const Span& span) {
  for (int32_t c = span.first; c < span.count; c += 16) {
    const Vec scale = load(s.scales + c);
    for (int32_t i = 0; i < t.pair_count; ++i) {
      float* scores = s.scores + i * kSpanTokens + c;
      store(scores, mul(load(scores), scale));
    }
  }
}

// Scores of `kCount` columns from c on, straight from their pages.
template <int kCount, typename Element>
void score_directly(const AttentionTile& t, const Scratch& s, const Span& span, int32_t c) {
  const RawOf<Element>* keys[kCount];
  const std::byte* ahead[kCount];
  for (int i = 0; i < kCount; ++i) {
    keys[i] = keys_at<Element>(t, span.begin + c + 16 * i);
    ahead[i] = ahead_of<Element>(t, span, c + 16 * i, true);
  }
  for_row_tiles(t.pair_count, [&](int32_t row, auto rows) {
    constexpr int kRows = decltype(rows)::kValue;
    const auto stride = static_cast<size_t>(t.block_tokens);
    const float* q = s.turned + row * s.dim;
    float* scores = s.scores + row * kSpanTokens + c;
    if constexpr (kRows * kCount <= kTileVectors) {
      score_tile<kRows, kCount, Element>(keys, stride, t.head_dim, q, scores, ahead);
    } else {
      for (int i = 0; i < kCount; ++i)
        score_tile<kRows, 1, Element>(keys + i, stride, t.head_dim, q, scores + 16 * i, ahead + i);
    }
  });
}

// Codes whose widening takes several operations are widened once for all pairs when these fill
// several register tiles; the sums are the same, bit for bit.
template <typename Element>
bool widens_once(const AttentionTile& t) {
  return sizeof(Element) == 1 && t.pair_count >= 2 * kMaxTileRows;
}

// Columns of keys, or vectors of dims of values, that a tile of the most rows takes.
constexpr int kWidenedVectors = kMaxTileRows * 2 <= kTileVectors ? 2 : 1;

// Scores of `kCount` columns from c on, widened into the panel.
template <int kCount, typename Element>
void score_widened(const AttentionTile& t, const Scratch& s, const Span& span, int32_t c) {
  constexpr int32_t kStep = 64 / (16 * static_cast<int32_t>(sizeof(Element)));  // dims in a line
  const auto stride = static_cast<size_t>(t.block_tokens);
  for (int i = 0; i < kCount; ++i) {
    const RawOf<Element>* keys = keys_at<Element>(t, span.begin + c + 16 * i);
    const std::byte* ahead = ahead_of<Element>(t, span, c + 16 * i, true);
    for (int32_t d = 0; d < t.head_dim; ++d) {
      if (d % kStep == 0) ask_for(ahead + d * 16 * sizeof(Element));
      store(s.panel + (d * kCount + i) * 16,
            typename LoaderFor<Element>::Type{keys + d * stride, 0}(0));
    }
  }
  for_row_tiles(t.pair_count, [&](int32_t row, auto rows) {
    widened_score_tile<decltype(rows)::kValue, kCount>(s.panel, t.head_dim, s.turned + row * s.dim,
                                                       s.scores + row * kSpanTokens + c);
  });
}

// Scores of one column whose keys must be widened one by one.
template <typename Element>
void score_through_panel(const AttentionTile& t, const Scratch& s, const Span& span, int32_t c) {
  for (int32_t i = 0; i < t.pair_count; ++i) store(s.scores + i * kSpanTokens + c, zero());
  for (int32_t token = 0; token < 16; ++token) {
    const int32_t position = span.begin + c + token;
    const bool present = c + token < span.count && position >= span.start;
    const auto* keys =
        present ? reinterpret_cast<const Element*>(page_at(t, position) + t.k_offset) : nullptr;
    for (int32_t d = 0; d < t.head_dim; ++d) {
      s.panel[d * 16 + token] =
          present ? widen(keys[static_cast<size_t>(d) * t.block_tokens + slot_of(t, position)])
                  : 0.0F;
    }
  }
  fma_rows(LoadF32{s.panel, 16}, t.head_dim, s.q, s.dim, t.pair_count, s.scores + c, kSpanTokens);
}

template <typename Element, bool kInline>
void score_columns(const AttentionTile& t, const Scratch& s, const Span& span) {
  const auto direct = [&](int32_t c) {
    if (c >= span.count || t.block_tokens % 16 != 0) return false;
    const auto* plane = reinterpret_cast<const Element*>(page_at(t, span.begin + c) + t.k_offset);
    return loadable<Element, kInline>(plane, static_cast<size_t>(t.head_dim) * t.block_tokens);
  };
  const bool widened = widens_once<Element>(t);
  // What the panel holds: [max(dim, kSpanTokens)][16].
  const bool wide = kWidenedVectors == 2 && 2 * t.head_dim <= kSpanTokens;
  for (int32_t c = span.first; c < span.count; c += 16) {
    if (!direct(c)) {
      score_through_panel<Element>(t, s, span, c);
    } else if (widened && !(wide && direct(c + 16))) {
      score_widened<1, Element>(t, s, span, c);
    } else if (widened) {
      score_widened<kWidenedVectors, Element>(t, s, span, c);
      c += 16;
    } else if (direct(c + 16)) {
      score_directly<2, Element>(t, s, span, c);
      c += 16;
    } else {
      score_directly<1, Element>(t, s, span, c);
    }
  }
  if constexpr (kInline) {
    gather_scales<Element>(t, span, t.k_offset, s.scales);
    scale_columns(t, s, span);
  }
}

// Turns scores into weights; peak and total become the span's.
inline void soften(const AttentionTile& t, const Scratch& s, const Span& span) {
  const int32_t columns = (span.count + 15) / 16 * 16;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    float* scores = s.scores + i * kSpanTokens;
    if (!sees(t, span, i)) {
      for (int32_t c = span.first; c < columns; c += 16) store(scores + c, zero());
      continue;
    }
    if (t.softcap > 0) soft_cap(t.softcap, columns - span.first, scores + span.first);
    const int32_t hidden = pair_start(t, i) - span.begin;
    for (int32_t c = span.first; c < hidden; ++c) scores[c] = kMinusInfinity;
    int32_t last = pair_position(t, i) + 1 - span.begin;
    if (last > span.count) last = span.count;
    for (int32_t c = last; c < columns; ++c) scores[c] = kMinusInfinity;
    Vec peaks = load(scores + span.first);
    for (int32_t c = span.first + 16; c < columns; c += 16) peaks = max(peaks, load(scores + c));
    const float peak = max_lanes(peaks);
    Vec totals = zero();
    for (int32_t c = span.first; c < columns; c += 16) {
      const Vec weight = exp_vec(sub(load(scores + c), splat(peak)));
      store(scores + c, weight);
      totals = add(totals, weight);
    }
    s.peak[i] = peak;
    s.total[i] = sum_lanes(totals);
  }
}

// The span's values as runs of at most sixteen tokens; how many, or 0 when some cannot come
// through the loader.
template <typename Element, bool kInline>
int32_t find_runs(const AttentionTile& t, const Span& span, ValueRun* runs) {
  if (t.block_tokens % 16 != 0) return 0;
  int32_t count = 0;
  for (int32_t c = span.first_seen(); c < span.count; ++count) {
    const int32_t next = c / 16 * 16 + 16 < span.count ? c / 16 * 16 + 16 : span.count;
    ValueRun& run = runs[count];
    run = {.values = values_at<Element>(t, span.begin + c),
           .ahead = ahead_of<Element>(t, span, c / 16 * 16, false),
           .column = c,
           .count = next - c};
    if (!loadable<Element, kInline>(reinterpret_cast<const Element*>(run.values),
                                    static_cast<size_t>(run.count) * t.head_dim))
      return 0;
    c = next;
  }
  return count;
}

// Adds the weighted values of dims [d, head_dim), widened one by one, to s.span.
template <typename Element>
void weigh_through_panel(const AttentionTile& t, const Scratch& s, const Span& span, size_t d) {
  const auto head_dim = static_cast<size_t>(t.head_dim);
  for (int32_t i = 0; i < t.pair_count; ++i) {
    for (size_t at = d; at < s.dim; at += 16) store(s.span + i * s.dim + at, zero());
  }
  for (int32_t c = span.first_seen(); c < span.count;) {
    const int32_t offset = slot_of(t, span.begin + c);
    const int32_t in_page = t.block_tokens - offset;
    const int32_t depth = span.count - c < in_page ? span.count - c : in_page;
    const auto* values = reinterpret_cast<const Element*>(page_at(t, span.begin + c) + t.v_offset) +
                         offset * head_dim;
    for (size_t at = d; at < head_dim; at += 16) {
      for (int32_t token = 0; token < depth; ++token) {
        for (size_t lane = 0; lane < 16; ++lane) {
          s.panel[token * 16 + lane] =
              at + lane < head_dim ? widen(values[token * head_dim + at + lane]) : 0.0F;
        }
      }
      fma_rows(LoadF32{s.panel, 16}, depth, s.scores + c, kSpanTokens, t.pair_count, s.span + at,
               s.dim);
    }
    c += depth;
  }
}

// Weighted values of dims [d, d + 16 * kCount), widened into the panel a part of the span at a
// time.
template <int kCount, typename Element>
void weigh_widened(const AttentionTile& t, const Scratch& s, const ValueRun* runs, int32_t count,
                   size_t d) {
  constexpr int32_t kRuns = kColumns / kCount;  // at most sixteen tokens each, as many as fit
  for (int32_t first = 0; first < count; first += kRuns) {
    int32_t tokens = 0;
    for (int32_t r = first; r < count && r < first + kRuns; ++r) {
      const auto* values = reinterpret_cast<const RawOf<Element>*>(runs[r].values) + d;
      const std::byte* ahead = runs[r].ahead + d * sizeof(Element);
      for (int32_t i = 0; i < runs[r].count; ++i, ++tokens) {
        ask_for(ahead);
#pragma clang loop unroll(full)
        for (int c = 0; c < kCount; ++c)
          store(s.panel + (tokens * kCount + c) * 16,
                typename LoaderFor<Element>::Type{values + 16 * c, 0}(0));
        values += t.head_dim;
        ahead += t.head_dim * sizeof(Element);
      }
    }
    for_row_tiles(t.pair_count, [&](int32_t row, auto rows) {
      widened_value_tile<decltype(rows)::kValue, kCount>(
          s.panel, tokens, s.scores + row * kSpanTokens + runs[first].column, first == 0,
          s.span + row * s.dim + d, s.dim);
    });
  }
}

// Vectors of dims in one tile of so many rows.
constexpr int value_vectors(int rows) {
  return rows * 4 <= kTileVectors ? 4 : rows * 2 <= kTileVectors ? 2 : 1;
}

template <typename Element, bool kInline>
void weigh_values(const AttentionTile& t, const Scratch& s, const Span& span) {
  if constexpr (kInline) {
    gather_scales<Element>(t, span, t.v_offset, s.scales);
    scale_columns(t, s, span);
  }
  const auto head_dim = static_cast<size_t>(t.head_dim);
  ValueRun runs[kColumns];
  const int32_t count = find_runs<Element, kInline>(t, span, runs);
  const size_t whole = count > 0 ? head_dim / 16 * 16 : 0;
  if (whole > 0 && widens_once<Element>(t)) {
    size_t d = 0;
    for (; d + 16 * kWidenedVectors <= whole; d += 16 * kWidenedVectors)
      weigh_widened<kWidenedVectors, Element>(t, s, runs, count, d);
    for (; d < whole; d += 16) weigh_widened<1, Element>(t, s, runs, count, d);
    if (whole < head_dim) weigh_through_panel<Element>(t, s, span, whole);
    return;
  }
  for_row_tiles(whole > 0 ? t.pair_count : 0, [&](int32_t row, auto rows) {
    constexpr int kRows = decltype(rows)::kValue;
    constexpr int kWide = value_vectors(kRows);
    const float* weights = s.scores + row * kSpanTokens;
    float* sums = s.span + row * s.dim;
    size_t d = 0;
    for (; d + 16 * kWide <= whole; d += 16 * kWide)
      value_tile<kRows, kWide, Element>(runs, count, head_dim, d, weights, sums + d, s.dim);
    for (; d < whole; d += 16)
      value_tile<kRows, 1, Element>(runs, count, head_dim, d, weights, sums + d, s.dim);
  });
  if (whole < head_dim) weigh_through_panel<Element>(t, s, span, whole);
}

template <typename Element, bool kInline = false>
void attend(const AttentionTile& t) {
  constexpr float kFactor = LoaderFor<Element>::kFactor;
  const Scratch s = carve(t);
  load_queries(t, s, kFactor);
  Running running[kTilePairs];
  clear_sums(t, s);
  const Range range = range_of(t);
  for (int32_t begin = range.begin; begin < range.end; begin += kSpanTokens) {
    const Span span = span_at(range, begin);
    score_columns<Element, kInline>(t, s, span);
    soften(t, s, span);
    weigh_values<Element, kInline>(t, s, span);
    for (int32_t i = 0; i < t.pair_count; ++i) {
      if (sees(t, span, i)) take_span(t, s, begin, i, running[i]);
    }
  }
  if (in_parts(t)) return;
  for (int32_t i = 0; i < t.pair_count; ++i)
    finish_pair(t, i, s.sum + i * s.dim, running[i].total, t.value_scale * kFactor);
}

// Puts the partial results of all spans of a tile together.
inline void merge_partials(const AttentionTile& t) {
  const Scratch s = carve(t);
  const Range range = range_of(t);
  const float factor = t.dtype == KvDtype::kFp8Static || t.dtype == KvDtype::kFp8Inline
                           ? LoaderFor<E4m3>::kFactor
                           : 1;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    Running running;
    for (size_t d = 0; d < s.dim; d += 16) store(s.sum + d, zero());
    for (int32_t begin = range.begin; begin < range.end; begin += kSpanTokens) {
      if (!sees(t, span_at(range, begin), i)) continue;
      const float* partial = partial_at(t, begin / kSpanTokens, i);
      merge({partial[0], partial[1]}, partial + 16, s.dim, running, s.sum);
    }
    finish_pair(t, i, s.sum, running.total, t.value_scale * factor);
  }
}

inline void attention(const AttentionTile& t) {
  switch (t.dtype) {
    case KvDtype::kF32:
      attend<float>(t);
      break;
    case KvDtype::kF16:
      attend<F16>(t);
      break;
    case KvDtype::kBF16:
      attend<BF16>(t);
      break;
    case KvDtype::kFp8Static:
      attend<E4m3>(t);
      break;
    case KvDtype::kFp8Inline:
      attend<E4m3, true>(t);
      break;
    case KvDtype::kInt8Inline:
      attend<I8, true>(t);
      break;
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
