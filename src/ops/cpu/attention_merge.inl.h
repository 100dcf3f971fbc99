// What becomes of a span's result: it is merged into the running one, or kept to be merged later.
// Included after the simd header.
#pragma once

#include "ops/cpu/attention_span.inl.h"
#include "ops/cpu/elementwise.inl.h"

namespace tandem::ops::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Whether pair i sees any position of the span.
inline bool sees(const AttentionTile& t, const Span& span, int32_t i) {
  return pair_position(t, i) >= span.begin && pair_start(t, i) < span.begin + span.count;
}

// What the spans so far add up to.
struct Running {
  float peak = kMinusInfinity;
  float total = 0;
};

inline void merge(const Running& next, const float* values, size_t dim, Running& running,
                  float* sum) {
  const float top = running.peak > next.peak ? running.peak : next.peak;
  const float keep = exp_one(running.peak - top);
  const float take = exp_one(next.peak - top);
  running = {top, running.total * keep + next.total * take};
  for (size_t d = 0; d < dim; d += 16)
    store(sum + d, fma(load(sum + d), splat(keep), mul(load(values + d), splat(take))));
}

inline void finish_pair(const AttentionTile& t, int32_t i, const float* sum, float total,
                        float factor) {
  const int32_t pair = t.pair_begin + i;
  const size_t head = static_cast<size_t>(t.kv_head) * t.group + pair % t.group;
  float* out = t.out + (pair / t.group) * t.stride_out + head * t.head_dim;
  for (int32_t d = 0; d < t.head_dim; ++d) out[d] = sum[d] / total * factor;
}

inline void clear_sums(const AttentionTile& t, const Scratch& s) {
  if (in_parts(t)) return;
  for (int32_t i = 0; i < t.pair_count; ++i) {
    for (size_t d = 0; d < s.dim; d += 16) store(s.sum + i * s.dim + d, zero());
  }
}

// Takes pair i's result of the span at `begin` (s.peak, s.total, s.span).
inline void take_span(const AttentionTile& t, const Scratch& s, int32_t begin, int32_t i,
                      Running& running) {
  const float* values = s.span + i * s.dim;
  const Running found = {s.peak[i], s.total[i]};
  if (!in_parts(t)) {
    merge(found, values, s.dim, running, s.sum + i * s.dim);
    return;
  }
  float* partial = partial_at(t, begin / kSpanTokens, i);
  partial[0] = found.peak;
  partial[1] = found.total;
  for (size_t d = 0; d < s.dim; d += 16) store(partial + 16 + d, load(values + d));
}

}  // namespace
}  // namespace tandem::ops::cpu
