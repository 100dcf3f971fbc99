// The tiles' sums without tiles, bit for bit, for a few pairs and pages of BF16: for them laying
// keys and values out for tiles costs more than the products, and tiles that are used for a
// moment slow the vectors around them down.
//
// tdpbf16ps multiplies 32 numbers at a time: the 16 even ones are summed from zero by fused
// multiply-adds in float32, the 16 odd ones likewise, and both sums' sum is added to the running
// one; denormals are zeros. (Intel's reference; compared with the instruction over five million
// random sums, and by the tests of attention.) Included after the simd header.
#pragma once

#include "ops/cpu/attention_span.inl.h"

namespace tandem::ops::cpu {
namespace {

// With more, tiles are faster: 8.8 and 5.8 ms for 16 sequences of 4,096 positions with eight pairs
// to a KV head (the least of three runs each).
constexpr int32_t kFewPairs = 4;
constexpr int32_t kMostFewDims = 512;
constexpr int kFewColumns = 2;  // vectors at once: with four pairs, sums fill 24 registers

// Denormals as tiles have them, while it lives.
class TileDenormals {
 public:
  TileDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~TileDenormals() { _mm_setcsr(before_); }
  TileDenormals(const TileDenormals&) = delete;
  TileDenormals& operator=(const TileDenormals&) = delete;

 private:
  unsigned before_;
};

// The sums of kRows pairs times kCount vectors: those of a step's even and odd numbers, and the
// running ones.
template <int kRows, int kCount>
struct StepSums {
  Vec even[kRows][kCount];
  Vec odd[kRows][kCount];
  Vec all[kRows][kCount];

  StepSums() {
    clear(even);
    clear(odd);
    clear(all);
  }

  void end_step() {
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) {
#pragma clang loop unroll(full)
      for (int c = 0; c < kCount; ++c) {
        all[m][c] = add(all[m][c], add(even[m][c], odd[m][c]));
        even[m][c] = zero();
        odd[m][c] = zero();
      }
    }
  }

  void store(float* out, size_t stride) const {
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) store_vectors<kCount, BF16>(out + m * stride, all[m]);
  }
};

// Calls tile(an integral constant) with the number of pairs.
template <typename Tile>
inline void for_few_rows(int32_t rows, Tile tile) {
  switch (rows) {
    case 4:
      return tile(RowCount<4>{});
    case 3:
      return tile(RowCount<3>{});
    case 2:
      return tile(RowCount<2>{});
    default:
      return tile(RowCount<1>{});
  }
}

// Scores of kCount columns of sixteen from c on; q: [row][dim], rounded.
template <int kRows, int kCount>
inline void score_few(const AttentionTile& t, const Span& span, int32_t c, const float* q,
                      size_t dim, float* scores) {
  const uint16_t* keys[kCount];
  const std::byte* ahead[kCount];
  for (int i = 0; i < kCount; ++i) {
    keys[i] = keys_at<BF16>(t, span.begin + c + 16 * i);
    ahead[i] = ahead_of<BF16>(t, span, c + 16 * i, true);
  }
  const auto stride = static_cast<size_t>(t.block_tokens);
  StepSums<kRows, kCount> sums;
  for (int32_t begin = 0; begin < t.head_dim; begin += 32) {
    const int32_t end = t.head_dim - begin < 32 ? t.head_dim : begin + 32;
    for (int32_t d = begin; d < end; d += 2) {
      Vec first[kCount];
      Vec second[kCount];
#pragma clang loop unroll(full)
      for (int i = 0; i < kCount; ++i) ask_for(ahead[i] + d * 32);
      load_vectors<kCount, BF16>(keys, d * stride, first);
      load_vectors<kCount, BF16>(keys, (d + 1) * stride, second);
      multiply(first, q + d, dim, sums.even);
      multiply(second, q + d + 1, dim, sums.odd);
    }
    sums.end_step();
  }
  sums.store(scores + c, kScoreStride);
}

inline void score_few(const AttentionTile& t, const Scratch& s, const Span& span) {
  const TileDenormals denormals;
  for_few_rows(t.pair_count, [&](auto rows) {
    constexpr int kRows = decltype(rows)::kValue;
    int32_t c = span.first;
    for (; c + 16 * (kFewColumns - 1) < span.count; c += 16 * kFewColumns)
      score_few<kRows, kFewColumns>(t, span, c, s.turned, s.dim, s.scores);
    if (c < span.count) score_few<kRows, 1>(t, span, c, s.turned, s.dim, s.scores);
  });
}

// Where a span's values lie: tokens that nobody sees are zeros, so that a step is always whole.
// What to ask for is as many bytes as the sixteen values it stands for.
struct ValueRows {
  const uint16_t* row[kSpanTokens];
  const std::byte* ahead[kColumns];
  int32_t begin;  // multiples of 32
  int32_t end;
};

inline void find_rows(const AttentionTile& t, const Span& span, const uint16_t* zeros,
                      ValueRows& rows) {
  rows.begin = span.first / 32 * 32;
  rows.end = (span.count + 31) / 32 * 32;
  const int32_t seen = span.first_seen();
  const auto step = static_cast<size_t>(t.head_dim);
  for (int32_t c = rows.begin; c < rows.end; c += 16) {
    const bool there = c >= span.first && c < span.count;
    const uint16_t* values =
        there ? reinterpret_cast<const uint16_t*>(values_at<BF16>(t, span.begin + c)) : nullptr;
    rows.ahead[c / 16] = there ? ahead_of<BF16>(t, span, c, false) : nullptr;
    for (int32_t i = 0; i < 16; ++i)
      rows.row[c + i] = there && c + i >= seen && c + i < span.count ? values + i * step : zeros;
  }
}

// Weighted values of kCount vectors of dims from d on; weights: [row][kSpanTokens].
template <int kRows, int kCount>
inline void weigh_few(const AttentionTile& t, const ValueRows& rows, const float* weights,
                      int32_t d, float* out, size_t stride_out) {
  StepSums<kRows, kCount> sums;
  const size_t step = static_cast<size_t>(t.head_dim) * sizeof(uint16_t);
  for (int32_t begin = rows.begin; begin < rows.end; begin += 32) {
    for (int32_t token = begin; token < begin + 32; token += 2) {
      const std::byte* ahead = rows.ahead[token / 16];
      if (ahead != nullptr) {
        ask_for(ahead + token % 16 * step + d * sizeof(uint16_t));
        ask_for(ahead + (token % 16 + 1) * step + d * sizeof(uint16_t));
      }
      const uint16_t* places[2][kCount];
#pragma clang loop unroll(full)
      for (int i = 0; i < kCount; ++i) {
        places[0][i] = rows.row[token] + d + 16 * i;
        places[1][i] = rows.row[token + 1] + d + 16 * i;
      }
      Vec first[kCount];
      Vec second[kCount];
      load_vectors<kCount, BF16>(places[0], 0, first);
      load_vectors<kCount, BF16>(places[1], 0, second);
      multiply(first, weights + token, kSpanTokens, sums.even);
      multiply(second, weights + token + 1, kSpanTokens, sums.odd);
    }
    sums.end_step();
  }
  sums.store(out, stride_out);
}

static_assert(kFewPairs * kSpanTokens <= kSpanTokens * 16, "the panel holds their weights");
inline void weigh_few(const AttentionTile& t, const Scratch& s, const Span& span) {
  alignas(64) static constexpr uint16_t kZeros[kMostFewDims] = {};
  ValueRows rows;
  find_rows(t, span, kZeros, rows);
  float* weights = s.panel;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const auto* rounded = reinterpret_cast<const uint16_t*>(s.scores + i * kScoreStride);
    for (int32_t c = rows.begin; c < rows.end; c += 16)
      store(weights + i * kSpanTokens + c, load_bf16(rounded + c));
  }
  const TileDenormals denormals;
  for_few_rows(t.pair_count, [&](auto pairs) {
    constexpr int kRows = decltype(pairs)::kValue;
    int32_t d = 0;
    for (; d + 16 * kFewColumns <= t.head_dim; d += 16 * kFewColumns)
      weigh_few<kRows, kFewColumns>(t, rows, weights, d, s.span + d, s.dim);
    if (d < t.head_dim) weigh_few<kRows, 1>(t, rows, weights, d, s.span + d, s.dim);
  });
}

}  // namespace
}  // namespace tandem::ops::cpu
