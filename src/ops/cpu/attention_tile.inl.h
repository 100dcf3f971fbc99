// The register tiles of attention: scores of a few pairs against one or two columns of sixteen
// keys, and weighted sums of values over a whole span, both without a store before the end.
//
// Per sixteen values and tile: one load and its widening, and a multiply-add for each pair with a
// factor broadcast from memory. A pair's chain of multiply-adds is as long as there are dims (or
// tokens), so a tile holds enough chains to hide their latency: pairs times columns, pairs times
// vectors of dims. Every output is one chain in the order of dims (of positions): tiles of any
// shape give the same bits.
//
// While it reads, a tile asks for the lines of a plane that comes some planes later, one for each
// that it reads: a decode step reads every byte of its pages once, from pages that lie anywhere,
// and requests that come all at once wait for each other.
#pragma once

#include "ops/cpu/attention_loaders.inl.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

constexpr int32_t kColumns = kSpanTokens / 16;  // of a span

inline void ask_for(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

template <typename Element>
using RawOf = __remove_pointer(decltype(LoaderFor<Element>::Type::data));

// Two vectors at once, in the order that suits the loader, and back in place.
template <typename Element>
inline void load_pair(const RawOf<Element>* p, const RawOf<Element>* q, Vec& x, Vec& y) {
  if constexpr (__is_same(Element, BF16)) {
    load_bf16_pair(p, q, x, y);
  } else {
    using Loader = typename LoaderFor<Element>::Type;
    x = Loader{p, 0}(0);
    y = Loader{q, 0}(0);
  }
}
template <typename Element>
inline void store_pair(float* p, float* q, Vec x, Vec y) {
  if constexpr (__is_same(Element, BF16)) {
    store_bf16_pair(p, q, x, y);
  } else {
    store(p, x);
    store(q, y);
  }
}

// kCount vectors, from `places` on: two by two, the last one alone when the count is odd.
template <int kCount, typename Element>
inline void load_vectors(const RawOf<Element>* const* places, size_t offset, Vec* out) {
#pragma clang loop unroll(full)
  for (int c = 0; c + 2 <= kCount; c += 2)
    load_pair<Element>(places[c] + offset, places[c + 1] + offset, out[c], out[c + 1]);
  if constexpr (kCount % 2 == 1)
    out[kCount - 1] = typename LoaderFor<Element>::Type{places[kCount - 1] + offset, 0}(0);
}
template <int kCount, typename Element>
inline void store_vectors(float* out, const Vec* x) {
#pragma clang loop unroll(full)
  for (int c = 0; c + 2 <= kCount; c += 2)
    store_pair<Element>(out + 16 * c, out + 16 * (c + 1), x[c], x[c + 1]);
  if constexpr (kCount % 2 == 1) store(out + 16 * (kCount - 1), x[kCount - 1]);
}

// acc[m][c] += vectors[c] * factors[m * stride].
template <int kRows, int kCount>
inline void multiply(const Vec* vectors, const float* factors, size_t stride,
                     Vec (&acc)[kRows][kCount]) {
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) {
    const Vec factor = splat(factors[m * stride]);
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) acc[m][c] = fma(vectors[c], factor, acc[m][c]);
  }
}

template <int kRows, int kCount>
inline void clear(Vec (&acc)[kRows][kCount]) {
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) acc[m][c] = zero();
  }
}

// scores[m][16 * c ..] = sum over d of q[d][m] * keys[c][d][0..15]; `stride` elements from one dim
// to the next. ahead[c]: sixteen times `dims` elements to ask for.
template <int kRows, int kCount, typename Element>
inline void score_tile(const RawOf<Element>* const* keys, size_t stride, int32_t dims,
                       const float* q, float* scores, const std::byte* const* ahead) {
  constexpr int32_t kStep = 64 / (16 * static_cast<int32_t>(sizeof(Element)));  // dims in a line
  Vec acc[kRows][kCount];
  clear(acc);
  Vec key[kCount];
  int32_t d = 0;
  for (; d + kStep <= dims; d += kStep) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) ask_for(ahead[c] + d * 16 * sizeof(Element));
#pragma clang loop unroll(full)
    for (int32_t i = 0; i < kStep; ++i) {
      load_vectors<kCount, Element>(keys, (d + i) * stride, key);
      multiply(key, q + (d + i) * kRows, 1, acc);
    }
  }
  for (; d < dims; ++d) {
    load_vectors<kCount, Element>(keys, d * stride, key);
    multiply(key, q + d * kRows, 1, acc);
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) store_vectors<kCount, Element>(scores + m * kSpanTokens, acc[m]);
}

// The same with widened keys, [dim][column][16].
template <int kRows, int kCount>
inline void widened_score_tile(const float* keys, int32_t dims, const float* q, float* scores) {
  Vec acc[kRows][kCount];
  clear(acc);
  for (int32_t d = 0; d < dims; ++d) {
    Vec key[kCount];
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) key[c] = load(keys + (d * kCount + c) * 16);
    multiply(key, q + d * kRows, 1, acc);
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) store(scores + m * kSpanTokens + 16 * c, acc[m][c]);
  }
}

// sums[m][0 .. 16 * kCount) += sum over tokens of weight[m] * values, widened, [token][kCount][16].
// `first`: as if sums were 0.
template <int kRows, int kCount>
inline void widened_value_tile(const float* values, int32_t tokens, const float* weights,
                               bool first, float* sums, size_t stride_sums) {
  Vec acc[kRows][kCount];
  clear(acc);
  if (!first) {
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
      for (int c = 0; c < kCount; ++c) acc[m][c] = load(sums + m * stride_sums + 16 * c);
    }
  }
  for (int32_t token = 0; token < tokens; ++token) {
    Vec value[kCount];
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) value[c] = load(values + (token * kCount + c) * 16);
    multiply(value, weights + token, kSpanTokens, acc);
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kCount; ++c) store(sums + m * stride_sums + 16 * c, acc[m][c]);
  }
}

// Tokens of a span whose values lie one after another.
struct ValueRun {
  const std::byte* values;  // of the first token
  const std::byte* ahead;   // as many bytes to ask for
  int32_t column;           // its weight's place in the span
  int32_t count;
};

// sums[m][0 .. 16 * kCount) = sum over the runs' tokens of weight[m] * values.
template <int kRows, int kCount, typename Element>
inline void value_tile(const ValueRun* runs, int32_t run_count, size_t head_dim, size_t first_dim,
                       const float* weights, float* sums, size_t stride_sums) {
  constexpr size_t kBytes = 16 * kCount * sizeof(Element);
  Vec acc[kRows][kCount];
  clear(acc);
  for (int32_t r = 0; r < run_count; ++r) {
    const ValueRun& run = runs[r];
    const std::byte* ahead = run.ahead + first_dim * sizeof(Element);
    const auto* values = reinterpret_cast<const RawOf<Element>*>(run.values) + first_dim;
    const float* weight = weights + run.column;
    for (int32_t token = 0; token < run.count; ++token) {
#pragma clang loop unroll(full)
      for (size_t i = 0; i < kBytes; i += 64) ask_for(ahead + i);
      const RawOf<Element>* places[kCount];
#pragma clang loop unroll(full)
      for (int c = 0; c < kCount; ++c) places[c] = values + 16 * c;
      Vec value[kCount];
      load_vectors<kCount, Element>(places, 0, value);
      multiply(value, weight + token, kSpanTokens, acc);
      values += head_dim;
      ahead += head_dim * sizeof(Element);
    }
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) store_vectors<kCount, Element>(sums + m * stride_sums, acc[m]);
}

// Calls tile(rows so far, integral constant) for tiles that cover `rows`.
template <int kRows>
struct RowCount {
  static constexpr int kValue = kRows;
};
template <typename Tile>
inline void for_row_tiles(int32_t rows, Tile tile) {
  int32_t done = 0;
  for (; rows - done >= kMaxTileRows; done += kMaxTileRows) tile(done, RowCount<kMaxTileRows>{});
  if (rows - done >= 4) {
    tile(done, RowCount<4>{});
    done += 4;
  }
  switch (rows - done) {
    case 3:
      tile(done, RowCount<3>{});
      break;
    case 2:
      tile(done, RowCount<2>{});
      break;
    case 1:
      tile(done, RowCount<1>{});
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
