// Paged attention for a tile of (row, query head) pairs that share a KV head: prefill chunks and
// decode steps alike.
//
// K lies in a page as [dim][token], so sixteen neighbouring tokens are one weight vector of
// fma_tile and the queries are its rows: no horizontal sums, and each K and V vector is widened
// once for all pairs of the tile. Per span of kSpanTokens positions: scores, their maximum,
// exponentials, weighted values; then a merge into the running result. With a window, columns
// before the first position that any pair of the tile sees are left out, sixteen at a time.
//
// Why the bits depend on the position only: scores are independent lanes, each summed in order of
// dim; a span always starts at a multiple of kSpanTokens; masked scores become weights of exactly
// 0, which change neither a sum of weights nor a weighted sum (so leaving them out changes nothing
// either); spans merge in order. Cost per pair
// and position: 2 * dim multiply-adds.
//
// Narrow pages are never expanded: codes widen in the loader, once for all pairs. What their values
// are to be multiplied with is folded into the query and the result (a static scale, and the 256 of
// load_e4m3), or into the scores and the weights of a token (inline scales): a multiplication for
// each pair and position, not for each value. Per sixteen values and tile: one load and 2
// operations (BF16), 4 (e4m3), 2 (int8) beside the pairs' multiply-adds. Included after the simd
// header.
#pragma once

#include "ops/cpu/elementwise.inl.h"
#include "ops/cpu/fma_tile.inl.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

// How the elements of a page are read: Type's values times kFactor are PageTrait's without a scale.
template <typename Element>
struct LoaderFor;
template <>
struct LoaderFor<float> {
  using Type = LoadF32;
  static constexpr float kFactor = 1;
};
struct F16 {
  uint16_t bits;
};
template <>
struct LoaderFor<F16> {
  using Type = LoadF16;
  static constexpr float kFactor = 1;
};
struct BF16 {
  uint16_t bits;
};
template <>
struct LoaderFor<BF16> {
  using Type = LoadBF16;
  static constexpr float kFactor = 1;
};
struct E4m3 {
  uint8_t bits;
};
template <>
struct LoaderFor<E4m3> {
  using Type = LoadE4m3;
  static constexpr float kFactor = 256;
};
struct I8 {
  int8_t bits;
};
template <>
struct LoaderFor<I8> {
  using Type = LoadI8;
  static constexpr float kFactor = 1;
};

inline float widen(float x) { return x; }
inline float widen(I8 x) { return x.bits; }
inline float widen(E4m3 x) {
  if ((x.bits & 0x7F) == 0x7F) return __builtin_nanf("");
  const int bits = (x.bits & 0x80) << 8 | (x.bits & 0x7F) << 7;
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
inline float widen(BF16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
inline float widen(F16 x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.bits))); }

constexpr float kMinusInfinity = -__builtin_inff();

struct Scratch {
  float* q;       // [pair][dim], scaled, padded to a multiple of 16
  float* scores;  // [pair][kSpanTokens]
  float* span;    // [pair][dim], weighted values of one span
  float* sum;     // [pair][dim], merged
  float* panel;   // [max(dim, kSpanTokens)][16]
  float* peak;    // [pair]
  float* total;   // [pair]
  float* scales;  // [kSpanTokens], inline scales of one span's keys, then of its values
  size_t dim;     // padded
};

inline Scratch carve(const AttentionTile& t) {
  Scratch s;
  s.dim = (static_cast<size_t>(t.head_dim) + 15) / 16 * 16;
  s.q = t.scratch;
  s.scores = s.q + kTilePairs * s.dim;
  s.span = s.scores + kTilePairs * kSpanTokens;
  s.sum = s.span + kTilePairs * s.dim;
  s.panel = s.sum + kTilePairs * s.dim;
  s.peak = s.panel + (s.dim > kSpanTokens ? s.dim : static_cast<size_t>(kSpanTokens)) * 16;
  s.total = s.peak + kTilePairs;
  s.scales = s.total + kTilePairs;
  return s;
}

inline const std::byte* page_at(const AttentionTile& t, int32_t position) {
  return t.page_base +
         static_cast<size_t>(t.page_ids[(position / t.block_tokens) * t.page_id_step]) *
             t.page_stride;
}

// The row's own position for a pair of this tile.
inline int32_t pair_position(const AttentionTile& t, int32_t i) {
  return t.first_position + (t.pair_begin + i) / t.group;
}

// The first position that a pair sees.
inline int32_t pair_start(const AttentionTile& t, int32_t i) {
  const int32_t start = pair_position(t, i) + 1 - t.window;
  return t.window > 0 && start > 0 ? start : 0;
}

// Columns [first, count) of the span that starts at `begin`; `first` is a multiple of 16. Positions
// before `start` are not read, but for neighbours of it in the same sixteen of one page.
struct Span {
  int32_t begin;
  int32_t first;
  int32_t count;
  int32_t start;
};

// `factor` is that of the loader.
inline void load_queries(const AttentionTile& t, const Scratch& s, float factor) {
  const float scale = t.scale * factor;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const int32_t pair = t.pair_begin + i;
    const size_t head = static_cast<size_t>(t.kv_head) * t.group + pair % t.group;
    const float* q = t.q + (pair / t.group) * t.stride_q + head * t.head_dim;
    for (int32_t d = 0; d < t.head_dim; ++d) s.q[i * s.dim + d] = q[d] * scale;
    for (size_t d = t.head_dim; d < s.dim; ++d) s.q[i * s.dim + d] = 0;
  }
}

// Asks for a plane that is read soon. Pages lie anywhere, so the processor's own prefetching begins
// anew in every plane, of which a decode step reads each byte once.
inline void prefetch_plane(const AttentionTile& t, int32_t position, size_t offset, size_t bytes) {
  const std::byte* plane = page_at(t, position) + offset;
  for (size_t i = 0; i < bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(plane + i), _MM_HINT_T0);
}

// While the columns at `c` of one of a span's two passes (keys, then values) are worked on: asks
// for those kAhead further on, in this pass or the next.
constexpr int32_t kAhead = 32;
template <typename Element>
void prefetch_ahead(const AttentionTile& t, const Span& span, int32_t c, bool keys) {
  const size_t bytes = static_cast<size_t>(t.head_dim) * t.block_tokens * sizeof(Element);
  const int32_t end = pair_position(t, t.pair_count - 1) + 1;
  const int32_t ahead = c + kAhead;
  if (ahead < span.count) {
    prefetch_plane(t, span.begin + ahead, keys ? t.k_offset : t.v_offset, bytes);
  } else if (keys) {
    const int32_t first = span.first + ahead - (span.count + 15) / 16 * 16;
    if (first >= span.first && first < span.count && span.begin + first >= span.start)
      prefetch_plane(t, span.begin + first, t.v_offset, bytes);
  } else if (span.begin + ahead < end) {
    prefetch_plane(t, span.begin + ahead, t.k_offset, bytes);
  }
}

// Copies the inline scales of the span's tokens, which follow the values of the plane at `offset`,
// to s.scales; columns that no page has get 1.
template <typename Element>
void gather_scales(const AttentionTile& t, const Scratch& s, const Span& span, size_t offset) {
  const size_t values = static_cast<size_t>(t.head_dim) * t.block_tokens * sizeof(Element);
  const int32_t skipped = span.start - span.begin;
  int32_t c = skipped > span.first ? skipped : span.first;
  for (int32_t i = span.first; i < c; ++i) s.scales[i] = 1;
  while (c < span.count) {
    const int32_t slot = (span.begin + c) % t.block_tokens;
    const int32_t in_page = t.block_tokens - slot;
    const int32_t count = span.count - c < in_page ? span.count - c : in_page;
    const std::byte* scales = page_at(t, span.begin + c) + offset + values;
    __builtin_memcpy(s.scales + c, scales + slot * sizeof(float), count * sizeof(float));
    c += count;
  }
  for (; c % 16 != 0; ++c) s.scales[c] = 1;
}

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

// Whether `count` stored values can come through the loader: all but e4m3's NaN, which it reads as
// a number. (Beside inline scales there is no need to look: a token with a NaN has a NaN scale.)
template <typename Element, bool kInline>
bool loadable(const Element* values, size_t count) {
  if constexpr (__is_same(Element, E4m3) && !kInline) {
    return !any_nan_e4m3(reinterpret_cast<const uint8_t*>(values), count);
  }
  return true;
}

template <typename Element, bool kInline>
void score_columns(const AttentionTile& t, const Scratch& s, const Span& span) {
  using Loader = typename LoaderFor<Element>::Type;
  const int32_t begin = span.begin;
  const int32_t count = span.count;
  for (int32_t c = span.first; c < count; c += 16) {
    prefetch_ahead<Element>(t, span, c, true);
    for (int32_t i = 0; i < t.pair_count; ++i) store(s.scores + i * kSpanTokens + c, zero());
    const auto* plane = reinterpret_cast<const Element*>(
        t.block_tokens % 16 == 0 ? page_at(t, begin + c) + t.k_offset : nullptr);
    if (plane != nullptr &&
        loadable<Element, kInline>(plane, static_cast<size_t>(t.head_dim) * t.block_tokens)) {
      const auto* keys = plane;
      const auto* first = keys + (begin + c) % t.block_tokens;
      using Raw = __remove_pointer(decltype(Loader::data));
      fma_rows(Loader{reinterpret_cast<Raw*>(first), static_cast<size_t>(t.block_tokens)},
               t.head_dim, s.q, s.dim, t.pair_count, s.scores + c, kSpanTokens);
      continue;
    }
    for (int32_t token = 0; token < 16; ++token) {
      const int32_t position = begin + c + token;
      const bool present = c + token < count && position >= span.start;
      const auto* keys =
          present ? reinterpret_cast<const Element*>(page_at(t, position) + t.k_offset) : nullptr;
      for (int32_t d = 0; d < t.head_dim; ++d) {
        s.panel[d * 16 + token] =
            present
                ? widen(keys[static_cast<size_t>(d) * t.block_tokens + position % t.block_tokens])
                : 0.0F;
      }
    }
    fma_rows(LoadF32{s.panel, 16}, t.head_dim, s.q, s.dim, t.pair_count, s.scores + c, kSpanTokens);
  }
  if constexpr (kInline) {
    gather_scales<Element>(t, s, span, t.k_offset);
    scale_columns(t, s, span);
  }
}

// Whether pair i sees any position of the span.
inline bool sees(const AttentionTile& t, const Span& span, int32_t i) {
  return pair_position(t, i) >= span.begin && pair_start(t, i) < span.begin + span.count;
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
    for (int32_t c = pair_position(t, i) + 1 - span.begin; c < columns; ++c)
      scores[c] = kMinusInfinity;
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

template <typename Element, bool kInline>
void weigh_values(const AttentionTile& t, const Scratch& s, const Span& span) {
  using Loader = typename LoaderFor<Element>::Type;
  using Raw = __remove_pointer(decltype(Loader::data));
  for (int32_t i = 0; i < t.pair_count; ++i) {
    for (size_t d = 0; d < s.dim; d += 16) store(s.span + i * s.dim + d, zero());
  }
  if constexpr (kInline) {
    gather_scales<Element>(t, s, span, t.v_offset);
    scale_columns(t, s, span);
  }
  const auto head_dim = static_cast<size_t>(t.head_dim);
  const int32_t begin = span.begin;
  const int32_t count = span.count;
  const int32_t skipped = span.start - begin;
  for (int32_t c = skipped > span.first ? skipped : span.first; c < count;) {
    const int32_t offset = (begin + c) % t.block_tokens;
    const int32_t in_page = t.block_tokens - offset;
    const int32_t depth = count - c < in_page ? count - c : in_page;
    prefetch_ahead<Element>(t, span, c, false);
    const auto* values =
        reinterpret_cast<const Element*>(page_at(t, begin + c) + t.v_offset) + offset * head_dim;
    size_t d = 0;
    const bool loads = loadable<Element, kInline>(values, depth * head_dim);
    for (; loads && d + 16 <= head_dim; d += 16) {
      fma_rows(Loader{reinterpret_cast<Raw*>(values + d), head_dim}, depth, s.scores + c,
               kSpanTokens, t.pair_count, s.span + d, s.dim);
    }
    for (; d < head_dim; d += 16) {
      for (int32_t token = 0; token < depth; ++token) {
        for (size_t lane = 0; lane < 16; ++lane) {
          s.panel[token * 16 + lane] =
              d + lane < head_dim ? widen(values[token * head_dim + d + lane]) : 0.0F;
        }
      }
      fma_rows(LoadF32{s.panel, 16}, depth, s.scores + c, kSpanTokens, t.pair_count, s.span + d,
               s.dim);
    }
    c += depth;
  }
}

template <typename Element, bool kInline = false>
void attend(const AttentionTile& t) {
  constexpr float kFactor = LoaderFor<Element>::kFactor;
  const Scratch s = carve(t);
  load_queries(t, s, kFactor);
  float peak[kTilePairs];
  float total[kTilePairs];
  for (int32_t i = 0; i < t.pair_count; ++i) {
    peak[i] = kMinusInfinity;
    total[i] = 0;
    for (size_t d = 0; d < s.dim; d += 16) store(s.sum + i * s.dim + d, zero());
  }
  const int32_t end = pair_position(t, t.pair_count - 1) + 1;
  const int32_t start = pair_start(t, 0);
  for (int32_t begin = start / kSpanTokens * kSpanTokens; begin < end; begin += kSpanTokens) {
    const Span span = {.begin = begin,
                       .first = start > begin ? (start - begin) / 16 * 16 : 0,
                       .count = end - begin < kSpanTokens ? end - begin : kSpanTokens,
                       .start = start};
    score_columns<Element, kInline>(t, s, span);
    soften(t, s, span);
    weigh_values<Element, kInline>(t, s, span);
    for (int32_t i = 0; i < t.pair_count; ++i) {
      if (!sees(t, span, i)) continue;
      const float top = peak[i] > s.peak[i] ? peak[i] : s.peak[i];
      const float keep = exp_one(peak[i] - top);
      const float take = exp_one(s.peak[i] - top);
      peak[i] = top;
      total[i] = total[i] * keep + s.total[i] * take;
      for (size_t d = 0; d < s.dim; d += 16) {
        float* sum = s.sum + i * s.dim + d;
        store(sum, fma(load(sum), splat(keep), mul(load(s.span + i * s.dim + d), splat(take))));
      }
    }
  }
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const int32_t pair = t.pair_begin + i;
    const size_t head = static_cast<size_t>(t.kv_head) * t.group + pair % t.group;
    float* out = t.out + (pair / t.group) * t.stride_out + head * t.head_dim;
    const float scale = t.value_scale * kFactor;
    for (int32_t d = 0; d < t.head_dim; ++d) out[d] = s.sum[i * s.dim + d] / total[i] * scale;
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
