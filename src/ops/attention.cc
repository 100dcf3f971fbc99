// Writing keys and values to pages.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "ops/operators.h"
#include "ops/page_conversion.h"

namespace tandem::ops {
namespace {

// Writes one token's keys or values of one head to a plane: value d to element first + d * step.
void write_head(const cpu::Kernels& kernels, const PageLayout& layout, const float* x, float scale,
                int32_t slot, size_t first, size_t step, std::byte* plane) {
  if (has_inline_scales(layout.dtype)) {
    scale = token_scale(layout.dtype, std::span(x, static_cast<size_t>(layout.head_dim)));
    std::memcpy(plane + layout.value_bytes() + slot * sizeof(float), &scale, sizeof(float));
  }
  const size_t size = layout.element_bytes();
  constexpr int32_t kRun = 64;
  alignas(64) std::byte run[kRun * sizeof(float)];
  const auto scatter = [&]<size_t kSize>(std::integral_constant<size_t, kSize>, int32_t d,
                                         int32_t count) {
    for (int32_t i = 0; i < count; ++i)
      std::memcpy(plane + (first + (d + i) * step) * kSize, run + i * kSize, kSize);
  };
  for (int32_t d = 0; d < layout.head_dim; d += kRun) {
    const int32_t count = std::min(kRun, layout.head_dim - d);
    const cpu::StoredValues to = {.dtype = layout.dtype, .count = count, .scales = &scale};
    if (step == 1) {
      kernels.store_values(to, x + d, plane + (first + d) * size);
      continue;
    }
    kernels.store_values(to, x + d, run);
    if (size == 1) scatter(std::integral_constant<size_t, 1>{}, d, count);
    if (size == 2) scatter(std::integral_constant<size_t, 2>{}, d, count);
    if (size == 4) scatter(std::integral_constant<size_t, 4>{}, d, count);
  }
}

void write_row(const cpu::Kernels& kernels, const PageArenaView& pages, const AttentionLayer& layer,
               int32_t page, int32_t slot, const float* k, const float* v) {
  const PageLayout& layout = pages.layout;
  std::byte* base = pages.page(page);
  for (int32_t head = 0; head < layout.kv_heads;
       ++head, k += layout.head_dim, v += layout.head_dim) {
    write_head(kernels, layout, k, layer.scales.k_of(head), slot, static_cast<size_t>(slot),
               static_cast<size_t>(layout.block_tokens),
               base + layout.k_offset(layer.place.slot, head));
    write_head(kernels, layout, v, layer.scales.v_of(head), slot,
               static_cast<size_t>(slot) * layout.head_dim, 1,
               base + layout.v_offset(layer.place.slot, head));
  }
}

// Bias, norm and rotation of one row's query or key heads.
void transform_heads(const cpu::Kernels& kernels, const QkvTransform& transform, const float* bias,
                     const float* norm, int32_t heads, int32_t head_dim, const float* angles,
                     float* x) {
  const int32_t columns = heads * head_dim;
  if (bias != nullptr) kernels.add(bias, columns, x);
  if (norm != nullptr) {
    const int32_t width = transform.norm_whole ? columns : head_dim;
    for (int32_t at = 0; at < columns; at += width)
      kernels.rms_norm(x + at, norm, width, transform.epsilon, x + at);
  }
  if (angles == nullptr) return;
  const auto rotate =
      transform.rope->pairing == RopePairing::kHalves ? kernels.rope_halves : kernels.rope;
  rotate(x, heads, head_dim, transform.rope->pairs(), angles);
}

}  // namespace

Status check_page_layout(const PageLayout& layout) {
  if (layout.layout_id != kCpuLayoutId) {
    return internal_error("the CPU kernels need page layout " + std::to_string(kCpuLayoutId));
  }
  if (layout.groups < 1) return internal_error("a page layout has at least one group");
  if (layout.block_tokens <= 0 || layout.block_tokens % 8 != 0) {
    return internal_error("block_tokens must be a positive multiple of 8");
  }
  return {};
}

void finish_qkv(const CpuExecutor& executor, const AttentionShape& shape,
                const QkvTransform& transform, std::span<const SequenceRows> sequences, float* q,
                float* k, float* v, const AttentionLayer& layer, const PageArenaView& pages) {
  const auto q_columns = static_cast<size_t>(shape.q_columns());
  const auto kv_columns = static_cast<size_t>(shape.kv_columns());
  const int32_t block_tokens = pages.layout.block_tokens;
  const cpu::Kernels& kernels = executor.kernels();
  int32_t total = 0;
  for (const SequenceRows& sequence : sequences) total += sequence.row_count;
  const int32_t parts = std::min(total, executor.threads().count());
  executor.threads().parallel_parts(parts, [&](int, int part) {
    // The sequences' rows stand in one row; a part is a range of it.
    device::WorkRange range = device::split_work(total, part, parts);
    for (const SequenceRows& sequence : sequences) {
      const int32_t end = std::min(range.end, sequence.row_count);
      for (int32_t i = std::max(range.begin, 0); i < end; ++i) {
        const size_t row = static_cast<size_t>(sequence.first_row) + i;
        const int32_t position = sequence.first_position + i;
        float* values = v + row * kv_columns;
        const float* angles = transform.rope == nullptr
                                  ? nullptr
                                  : transform.cos_sin + row * transform.rope->pairs() * 2;
        transform_heads(kernels, transform, transform.q_bias, transform.q_norm, shape.heads,
                        shape.head_dim, angles, q + row * q_columns);
        transform_heads(kernels, transform, transform.k_bias, transform.k_norm, shape.kv_heads,
                        shape.head_dim, angles, k + row * kv_columns);
        if (transform.v_bias != nullptr) kernels.add(transform.v_bias, shape.kv_columns(), values);
        const size_t block = static_cast<size_t>(position / block_tokens);
        write_row(kernels, pages, layer,
                  sequence.pages[block * pages.layout.groups + layer.place.group],
                  position % block_tokens, k + row * kv_columns, values);
      }
      range = {range.begin - sequence.row_count, range.end - sequence.row_count};
    }
  });
}

}  // namespace tandem::ops
