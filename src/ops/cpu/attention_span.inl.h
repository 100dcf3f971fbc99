// Where an attention tile finds things: its scratch, its pages, the spans of positions that it goes
// through, and what it will read next. Included after the simd header.
#pragma once

#include "ops/cpu/attention_tile.inl.h"

namespace tandem::ops::cpu {
namespace {

// How far ahead of what is read memory is asked for: what one core can have on the way to its
// second cache level at once, with room to spare.
constexpr size_t kAheadBytes = 16384;

struct Scratch {
  float* q;       // [pair][dim], scaled, padded to a multiple of 16
  float* turned;  // q in the order of the register tiles: [tile][dim][pair of the tile]
  float* scores;  // [pair][kSpanTokens]; AMX: [pair][kScoreStride]
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
  s.turned = s.q + kTilePairs * s.dim;
  s.scores = s.turned + kTilePairs * s.dim;
  s.span = s.scores + kTilePairs * kScoreStride;
  s.sum = s.span + kTilePairs * s.dim;
  s.panel = s.sum + kTilePairs * s.dim;
  s.peak = s.panel + (s.dim > kSpanTokens ? s.dim : static_cast<size_t>(kSpanTokens)) * 16;
  s.total = s.peak + kTilePairs;
  s.scales = s.total + kTilePairs;
  return s;
}

inline int32_t block_of(const AttentionTile& t, int32_t position) {
  return t.block_shift >= 0 ? position >> t.block_shift : position / t.block_tokens;
}
inline int32_t slot_of(const AttentionTile& t, int32_t position) {
  return position - block_of(t, position) * t.block_tokens;
}
inline const std::byte* page_at(const AttentionTile& t, int32_t position) {
  const auto block = static_cast<size_t>(block_of(t, position));
  return t.page_base + static_cast<size_t>(t.page_ids[block * t.page_id_step]) * t.page_stride;
}

// One pair's place in `partials`.
inline float* partial_at(const AttentionTile& t, int32_t span, int32_t i) {
  if (t.shared != nullptr)
    return t.shared[i].partials + static_cast<size_t>(span) * t.shared[i].partial_stride;
  const size_t dim = (static_cast<size_t>(t.head_dim) + 15) / 16 * 16;
  return t.partials + static_cast<size_t>(span) * t.partial_stride +
         static_cast<size_t>(i) * (16 + dim);
}

// Whether spans' results go to partials, to be merged later.
inline bool in_parts(const AttentionTile& t) {
  return t.partials != nullptr || t.shared != nullptr;
}

// Pairs [first, first + count) of a tile of one sequence, as a tile.
inline AttentionTile part_of(const AttentionTile& t, int32_t first, int32_t count) {
  AttentionTile part = t;
  part.pair_begin += first;
  part.pair_count = count;
  if (t.shared != nullptr) part.shared += first;
  if (t.partials != nullptr) part.partials = partial_at(t, 0, first);
  return part;
}

// The row's own position for a pair of this tile.
inline int32_t pair_position(const AttentionTile& t, int32_t i) {
  if (t.shared != nullptr) return t.shared[i].position;
  return t.first_position + (t.pair_begin + i) / t.group;
}

// The first position that a pair sees.
inline int32_t pair_start(const AttentionTile& t, int32_t i) {
  const int32_t start = pair_position(t, i) + 1 - t.window;
  return t.window > 0 && start > 0 ? start : 0;
}

// The positions that a tile reads.
struct Range {
  int32_t start;  // no pair sees what is before
  int32_t begin;  // a multiple of kSpanTokens
  int32_t end;
};

inline Range range_of(const AttentionTile& t) {
  Range range;
  range.start = pair_start(t, 0);
  for (int32_t i = 1; t.shared != nullptr && i < t.pair_count; ++i) {
    const int32_t start = pair_start(t, i);
    if (start < range.start) range.start = start;
  }
  range.begin = range.start / kSpanTokens * kSpanTokens;
  if (range.begin < t.begin) range.begin = t.begin;
  range.end = t.shared != nullptr ? t.end : pair_position(t, t.pair_count - 1) + 1;
  if (range.end > t.end) range.end = t.end;
  return range;
}

// Columns [first, count) of the span that starts at `begin`; `first` is a multiple of 16. Positions
// before `start` are not read, but for neighbours of it in the same sixteen of one page.
struct Span {
  int32_t begin;
  int32_t first;
  int32_t count;
  int32_t start;
  int32_t end;  // of the tile's range

  int32_t first_seen() const { return start - begin > first ? start - begin : first; }
};

inline Span span_at(const Range& range, int32_t begin) {
  return {.begin = begin,
          .first = range.start > begin ? (range.start - begin) / 16 * 16 : 0,
          .count = range.end - begin < kSpanTokens ? range.end - begin : kSpanTokens,
          .start = range.start,
          .end = range.end};
}

// A pair's query, head_dim floats.
inline const float* query_of(const AttentionTile& t, int32_t i) {
  const int32_t pair = t.pair_begin + i;
  const int32_t row = t.shared != nullptr ? t.shared[i].row : pair / t.group;
  const int32_t in_group = t.shared != nullptr ? t.shared[i].head : pair % t.group;
  const size_t head = static_cast<size_t>(t.kv_head) * t.group + in_group;
  return t.q + row * t.stride_q + head * t.head_dim;
}

// `factor` is that of the loader.
inline void load_queries(const AttentionTile& t, const Scratch& s, float factor) {
  const float scale = t.scale * factor;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const float* q = query_of(t, i);
    for (int32_t d = 0; d < t.head_dim; ++d) s.q[i * s.dim + d] = q[d] * scale;
    for (size_t d = t.head_dim; d < s.dim; ++d) s.q[i * s.dim + d] = 0;
  }
  // One pointer then finds the factors of all rows, which would take more than there are.
  for_row_tiles(t.pair_count, [&](int32_t row, auto rows) {
    constexpr int kRows = decltype(rows)::kValue;
    const float* from = s.q + row * s.dim;
    float* to = s.turned + row * s.dim;
    for (int32_t d = 0; d < t.head_dim; ++d) {
      for (int m = 0; m < kRows; ++m) *to++ = from[m * s.dim + d];
    }
  });
}

// Where the keys of the sixteen positions from `position` on lie (of dim 0), and a position's
// values.
template <typename Element>
const RawOf<Element>* keys_at(const AttentionTile& t, int32_t position) {
  return reinterpret_cast<const RawOf<Element>*>(page_at(t, position) + t.k_offset) +
         slot_of(t, position);
}
template <typename Element>
const std::byte* values_at(const AttentionTile& t, int32_t position) {
  return page_at(t, position) + t.v_offset +
         static_cast<size_t>(slot_of(t, position)) * t.head_dim * sizeof(Element);
}

// What to ask for while column `c` (a multiple of 16) of one of a span's two passes is worked on:
// keys first, then values, then the next span's keys, some planes further on. A column's share of
// a plane, keys or values, is as many bytes as its values take. Without anything to come: what is
// there already.
template <typename Element>
const std::byte* ahead_of(const AttentionTile& t, const Span& span, int32_t c, bool keys) {
  const size_t share = static_cast<size_t>(t.head_dim) * sizeof(Element) * 16;
  const auto planes = static_cast<int32_t>(kAheadBytes / share);
  const int32_t columns = (span.count + 15) / 16 * 16;
  int32_t at = c + 16 * (planes < 1 ? 1 : planes);
  bool later = keys;
  int32_t position = span.begin + at;
  if (keys && at >= columns) {
    at += span.first - columns;
    later = false;
    position = span.begin + at;
  }
  if (!later && at >= columns) {
    at -= columns;
    position = span.begin + kSpanTokens + at;
    later = true;
  }
  if (at >= kSpanTokens || position >= span.end || position < span.start) {
    position = span.begin + c;
    if (position < span.start) position = span.start;
    later = keys;
  }
  const std::byte* page = page_at(t, position);
  return page + (later ? t.k_offset : t.v_offset) + slot_of(t, position) / 16 * share;
}

// Copies the inline scales of the span's tokens, which follow the values of the plane at `offset`,
// to `scales`; columns that no page has get 1.
template <typename Element>
void gather_scales(const AttentionTile& t, const Span& span, size_t offset, float* scales) {
  const size_t values = static_cast<size_t>(t.head_dim) * t.block_tokens * sizeof(Element);
  int32_t c = span.first_seen();
  for (int32_t i = span.first; i < c; ++i) scales[i] = 1;
  while (c < span.count) {
    const int32_t slot = slot_of(t, span.begin + c);
    const int32_t in_page = t.block_tokens - slot;
    const int32_t count = span.count - c < in_page ? span.count - c : in_page;
    const std::byte* from = page_at(t, span.begin + c) + offset + values;
    __builtin_memcpy(scales + c, from + slot * sizeof(float), count * sizeof(float));
    c += count;
  }
  for (; c % 16 != 0; ++c) scales[c] = 1;
}

}  // namespace
}  // namespace tandem::ops::cpu
