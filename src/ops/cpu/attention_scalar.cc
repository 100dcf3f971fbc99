// The normative attention: for each (row, query head) pair, spans of kSpanTokens positions; in each
// span scores, their maximum, exponentials and the weighted sum of values; then a merge into the
// running result.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/cpu/scalar.h"
#include "ops/page_trait.h"

namespace tandem::ops::cpu {
namespace {

struct Running {
  float peak = -std::numeric_limits<float>::infinity();
  float total = 0;
};

template <KvDtype kDtype>
float element(const std::byte* plane, size_t index) {
  typename PageTrait<kDtype>::Element value;
  std::memcpy(&value, plane + index * sizeof(value), sizeof(value));
  return PageTrait<kDtype>::load(value, 1.0F);
}

const std::byte* page_of(const AttentionTile& t, int32_t position) {
  return t.page_base +
         static_cast<size_t>(t.page_ids[(position / t.block_tokens) * t.page_id_step]) *
             t.page_stride;
}

// The inline scale of a token's values in a plane; 1 for dtypes without.
template <KvDtype kDtype>
float scale_at(const AttentionTile& t, const std::byte* plane, int32_t position) {
  float scale = 1;
  if constexpr (has_inline_scales(kDtype)) {
    const size_t values = static_cast<size_t>(t.head_dim) * t.block_tokens;
    std::memcpy(&scale, plane + values + (position % t.block_tokens) * sizeof(float),
                sizeof(float));
  }
  return scale;
}

// Scores, maximum and exponentials of positions [begin, end), at most kSpanTokens; returns
// {maximum, sum}.
template <KvDtype kDtype>
Running score_span(const AttentionTile& t, const float* q, int32_t begin, int32_t end,
                   float* scores) {
  Running span;
  for (int32_t position = begin; position < end; ++position) {
    const std::byte* keys = page_of(t, position) + t.k_offset;
    float score = 0;
    for (int32_t d = 0; d < t.head_dim; ++d) {
      const size_t index = static_cast<size_t>(d) * t.block_tokens + position % t.block_tokens;
      score += q[d] * element<kDtype>(keys, index);
    }
    score *= scale_at<kDtype>(t, keys, position);
    if (t.softcap > 0) score = soft_cap_one_scalar(t.softcap, score);
    scores[position - begin] = score;
    span.peak = std::max(span.peak, score);
  }
  for (int32_t i = 0; i < end - begin; ++i) {
    scores[i] = exp_scalar(scores[i] - span.peak);
    span.total += scores[i];
  }
  return span;
}

// Takes one span's result into what those before it gave.
void merge(const Running& span, const float* values, int32_t head_dim, Running& running,
           float* out) {
  const float peak = std::max(running.peak, span.peak);
  const float keep = exp_scalar(running.peak - peak);
  const float take = exp_scalar(span.peak - peak);
  running = {peak, running.total * keep + span.total * take};
  for (int32_t d = 0; d < head_dim; ++d) out[d] = out[d] * keep + values[d] * take;
}

// What a pair of a tile sees, and where its result goes.
struct Pair {
  int32_t row;
  int32_t head;
  int32_t start;
  int32_t end;
  float* out = nullptr;  // a shared tile has none

  Pair(const AttentionTile& t, int32_t index)
      : row((t.pair_begin + index) / t.group),
        head(t.kv_head * t.group + (t.pair_begin + index) % t.group) {
    end = t.first_position + row + 1;
    if (t.shared != nullptr) {
      row = t.shared[index].row;
      head = t.kv_head * t.group + t.shared[index].head;
      end = t.shared[index].position + 1;
    }
    start = std::max(t.window > 0 ? std::max(0, end - t.window) : 0, t.begin);
    end = std::min(end, t.end);
    if (t.out != nullptr) out = t.out + row * t.stride_out + static_cast<size_t>(head) * t.head_dim;
  }
};

bool in_parts(const AttentionTile& t) { return t.partials != nullptr || t.shared != nullptr; }

float* partial_at(const AttentionTile& t, int32_t first, int32_t index) {
  if (t.shared != nullptr) {
    return t.shared[index].partials +
           static_cast<size_t>(first / kSpanTokens) * t.shared[index].partial_stride;
  }
  return t.partials + static_cast<size_t>(first / kSpanTokens) * t.partial_stride +
         static_cast<size_t>(index) * partial_floats(t.head_dim);
}

template <KvDtype kDtype>
void attend_pair(const AttentionTile& t, int32_t pair_index) {
  const Pair pair(t, pair_index);
  float* q = t.scratch;
  float* scores = q + t.head_dim;
  float* span_out = scores + kSpanTokens;
  const float* query = t.q + pair.row * t.stride_q + static_cast<size_t>(pair.head) * t.head_dim;
  for (int32_t d = 0; d < t.head_dim; ++d) q[d] = query[d] * t.scale;

  Running running;
  if (!in_parts(t)) std::fill_n(pair.out, t.head_dim, 0.0F);
  for (int32_t first = pair.start / kSpanTokens * kSpanTokens; first < pair.end;
       first += kSpanTokens) {
    const int32_t begin = std::max(first, pair.start);
    const int32_t stop = std::min(pair.end, first + kSpanTokens);
    const Running span = score_span<kDtype>(t, q, begin, stop, scores);
    std::fill_n(span_out, t.head_dim, 0.0F);
    for (int32_t position = begin; position < stop; ++position) {
      const std::byte* values = page_of(t, position) + t.v_offset;
      const size_t base = static_cast<size_t>(position % t.block_tokens) * t.head_dim;
      const float weight = scores[position - begin] * scale_at<kDtype>(t, values, position);
      for (int32_t d = 0; d < t.head_dim; ++d)
        span_out[d] += weight * element<kDtype>(values, base + d);
    }
    if (!in_parts(t)) {
      merge(span, span_out, t.head_dim, running, pair.out);
      continue;
    }
    float* partial = partial_at(t, first, pair_index);
    partial[0] = span.peak;
    partial[1] = span.total;
    std::copy_n(span_out, t.head_dim, partial + 16);
  }
  if (in_parts(t)) return;
  for (int32_t d = 0; d < t.head_dim; ++d)
    pair.out[d] = pair.out[d] / running.total * t.value_scale;
}

template <KvDtype kDtype>
void attend(const AttentionTile& t) {
  for (int32_t i = 0; i < t.pair_count; ++i) attend_pair<kDtype>(t, i);
}

}  // namespace

void attention_scalar(const AttentionTile& tile) {
  switch (tile.dtype) {
    case KvDtype::kF32:
      attend<KvDtype::kF32>(tile);
      break;
    case KvDtype::kF16:
      attend<KvDtype::kF16>(tile);
      break;
    case KvDtype::kBF16:
      attend<KvDtype::kBF16>(tile);
      break;
    case KvDtype::kFp8Static:
      attend<KvDtype::kFp8Static>(tile);
      break;
    case KvDtype::kFp8Inline:
      attend<KvDtype::kFp8Inline>(tile);
      break;
    case KvDtype::kInt8Inline:
      attend<KvDtype::kInt8Inline>(tile);
      break;
  }
}

void merge_attention_scalar(const AttentionTile& t) {
  for (int32_t i = 0; i < t.pair_count; ++i) {
    const Pair pair(t, i);
    Running running;
    std::fill_n(pair.out, t.head_dim, 0.0F);
    for (int32_t first = pair.start / kSpanTokens * kSpanTokens; first < pair.end;
         first += kSpanTokens) {
      const float* partial = partial_at(t, first, i);
      merge({partial[0], partial[1]}, partial + 16, t.head_dim, running, pair.out);
    }
    for (int32_t d = 0; d < t.head_dim; ++d)
      pair.out[d] = pair.out[d] / running.total * t.value_scale;
  }
}

}  // namespace tandem::ops::cpu
