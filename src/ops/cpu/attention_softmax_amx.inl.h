// The softmax between attention's two products in AMX's tiles: scores in units of log2(e) become
// weights in BF16. Included after the simd header.
#pragma once

#include "ops/cpu/attention_merge.inl.h"
#include "ops/cpu/avx512.h"

namespace tandem::ops::cpu {
namespace {

constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;

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
  float* scores = nullptr;
  const float* key_scales = nullptr;    // null: none
  const float* value_scales = nullptr;  // null: none
  int32_t first = 0;
  int32_t last = kSpanTokens;
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

// kSoftenedRows rows of a whole span that all of them see, in the sums and the order of Softmax:
// one row's chain of maximums and its reductions take longer than the work. `scales`: as soften's.
constexpr int kSoftenedRows = 4;
template <bool kInline>
inline void soften_whole(float* scores, const float* scales, float* peak, float* total) {
  Softmax rows[kSoftenedRows];
  for (int i = 0; i < kSoftenedRows; ++i)
    rows[i] = {.scores = scores + i * kScoreStride,
               .key_scales = kInline ? scales : nullptr,
               .value_scales = kInline ? scales + kSpanTokens : nullptr};
  for (int32_t c = 0; c < kSpanTokens; c += 16) {
    for (auto& row : rows) row.peaks = _mm512_max_ps(row.peaks, row.score_at(c));
  }
  __m512 tops[kSoftenedRows];
  for (int i = 0; i < kSoftenedRows; ++i) {
    const float top = _mm512_reduce_max_ps(rows[i].peaks);
    peak[i] = top * kLn2;
    tops[i] = _mm512_set1_ps(top);
  }
  for (int32_t c = 0; c < kSpanTokens; c += 32) {
    for (int i = 0; i < kSoftenedRows; ++i) rows[i].weigh<kInline>(c, ~0U, tops[i]);
  }
  for (int i = 0; i < kSoftenedRows; ++i) total[i] = _mm512_reduce_add_ps(rows[i].totals);
}

// Zeros for weights [from, to), whole 32s.
inline void clear_weights(float* scores, int32_t from, int32_t to) {
  auto* weights = reinterpret_cast<uint16_t*>(scores);
  for (int32_t c = from; c < to; c += 32) _mm512_storeu_si512(weights + c, _mm512_setzero_si512());
}

// Whether pairs [i, i + count) see every position of a whole span.
inline bool see_all(const AttentionTile& t, const Span& span, int32_t i, int32_t count) {
  if (span.first > 0 || span.count < kSpanTokens) return false;
  for (int32_t pair = i; pair < i + count; ++pair) {
    if (pair_position(t, pair) + 1 < span.begin + kSpanTokens || pair_start(t, pair) > span.begin)
      return false;
  }
  return true;
}

// Turns scores into weights; peak and total become the span's. `scales`: inline ones of keys and
// values, kSpanTokens each.
template <bool kInline>
inline void soften(const AttentionTile& t, const Scratch& s, const Span& span,
                   const float* scales) {
  const int32_t begin = span.first / 32 * 32;
  const int32_t end = (span.count + 31) / 32 * 32;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    float* scores = s.scores + i * kScoreStride;
    if (t.softcap <= 0 && i + kSoftenedRows <= t.pair_count && see_all(t, span, i, kSoftenedRows)) {
      soften_whole<kInline>(scores, scales, s.peak + i, s.total + i);
      i += kSoftenedRows - 1;
      continue;
    }
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

}  // namespace
}  // namespace tandem::ops::cpu
