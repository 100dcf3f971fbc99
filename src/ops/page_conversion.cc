#include "ops/page_conversion.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "ops/page_trait.h"

namespace tandem::ops {
namespace {

float scale_for(KvDtype dtype, float peak) {
  return dtype == KvDtype::kFp8Inline ? PageTrait<KvDtype::kFp8Inline>::scale_for(peak)
                                      : PageTrait<KvDtype::kInt8Inline>::scale_for(peak);
}

// The values of a plane as float32, in the order that they lie in.
void widen_plane(const cpu::Kernels& kernels, const PageLayout& layout, float scale, bool keys,
                 const std::byte* plane, float* out) {
  const int32_t tokens = layout.block_tokens;
  const int32_t dims = layout.head_dim;
  if (!has_inline_scales(layout.dtype)) {
    kernels.load_values({.dtype = layout.dtype, .count = tokens * dims, .scales = &scale}, plane,
                        out);
    return;
  }
  // The plane's scales are aligned: values are a multiple of 8 bytes.
  const auto* scales = reinterpret_cast<const float*>(plane + layout.value_bytes());
  const int32_t rows = keys ? dims : tokens;
  const int32_t columns = keys ? tokens : dims;
  for (int32_t row = 0; row < rows; ++row) {
    const size_t at = static_cast<size_t>(row) * columns;
    kernels.load_values({.dtype = layout.dtype,
                         .count = columns,
                         .scales = keys ? scales : scales + row,
                         .scale_step = keys ? 1 : 0},
                        plane + at, out + at);
  }
}

// The other way; computes the inline scales. `peaks`: one float for each token.
void narrow_plane(const cpu::Kernels& kernels, const PageLayout& layout, float scale, bool keys,
                  const float* x, float* peaks, std::byte* plane) {
  const int32_t tokens = layout.block_tokens;
  const int32_t dims = layout.head_dim;
  if (!has_inline_scales(layout.dtype)) {
    kernels.store_values({.dtype = layout.dtype, .count = tokens * dims, .scales = &scale}, x,
                         plane);
    return;
  }
  auto* scales = reinterpret_cast<float*>(plane + layout.value_bytes());
  const int32_t rows = keys ? dims : tokens;
  const int32_t columns = keys ? tokens : dims;
  if (keys) {
    std::memset(peaks, 0, static_cast<size_t>(tokens) * sizeof(float));
    for (int32_t d = 0; d < dims; ++d)
      kernels.raise_peaks(x + static_cast<size_t>(d) * tokens, tokens, peaks);
    for (int32_t t = 0; t < tokens; ++t) scales[t] = scale_for(layout.dtype, peaks[t]);
  }
  for (int32_t row = 0; row < rows; ++row) {
    const size_t at = static_cast<size_t>(row) * columns;
    if (!keys) scales[row] = token_scale(layout.dtype, std::span(x + at, columns));
    kernels.store_values({.dtype = layout.dtype,
                          .count = columns,
                          .scales = keys ? scales : scales + row,
                          .scale_step = keys ? 1 : 0},
                         x + at, plane + at);
  }
}

}  // namespace

float token_scale(KvDtype dtype, std::span<const float> values) {
  // Magnitudes compare as integers, and there NaN is largest.
  int32_t peak = 0;
  for (const float value : values) {
    const auto magnitude = std::bit_cast<int32_t>(value) & 0x7FFFFFFF;
    peak = magnitude > peak ? magnitude : peak;
  }
  return scale_for(dtype, std::bit_cast<float>(peak));
}

bool convertible(const PageLayout& from, const PageLayout& to) {
  PageLayout same = from;
  same.dtype = to.dtype;
  return same == to && from.layout_id == kCpuLayoutId;
}

size_t conversion_scratch_floats(const PageLayout& layout) {
  return cpu::round_up_16(static_cast<size_t>(layout.head_dim) * layout.block_tokens) +
         static_cast<size_t>(layout.block_tokens);
}

void convert_layer(const cpu::Kernels& kernels, const LayerFormat& from, const std::byte* source,
                   const LayerFormat& to, std::byte* target, std::span<float> scratch) {
  assert(convertible(from.layout, to.layout));
  assert(scratch.size() >= conversion_scratch_floats(from.layout));
  float* values = scratch.data();
  float* peaks = values + cpu::round_up_16(static_cast<size_t>(from.layout.head_dim) *
                                           from.layout.block_tokens);
  const bool is_static = from.layout.dtype == KvDtype::kFp8Static;
  for (int32_t head = 0; head < from.layout.kv_heads; ++head) {
    for (const bool keys : {true, false}) {
      const size_t from_at = from.layout.k_offset(0, head) + (keys ? 0 : from.layout.plane_bytes());
      const size_t to_at = to.layout.k_offset(0, head) + (keys ? 0 : to.layout.plane_bytes());
      const float old_scale = keys ? from.scales.k_of(head) : from.scales.v_of(head);
      const float new_scale = keys ? to.scales.k_of(head) : to.scales.v_of(head);
      if (from.layout.dtype == to.layout.dtype && (!is_static || old_scale == new_scale)) {
        std::memcpy(target + to_at, source + from_at, to.layout.plane_bytes());
        continue;
      }
      widen_plane(kernels, from.layout, old_scale, keys, source + from_at, values);
      narrow_plane(kernels, to.layout, new_scale, keys, values, peaks, target + to_at);
    }
  }
}

}  // namespace tandem::ops
