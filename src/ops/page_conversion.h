// Turning a layer of a page from one representation into another: what a decode worker with FP8
// pages does with the BF16 pages of its prefill worker.
#pragma once

#include <cstddef>
#include <span>

#include "ops/cpu/kernels.h"
#include "ops/page_layout.h"

namespace tandem::ops {

// The inline scale of one token's values of one head.
float token_scale(KvDtype dtype, std::span<const float> values);

// One side of a conversion: how its pages lie, and where one layer of one page is.
struct LayerFormat {
  PageLayout layout;
  KvScaleView scales;  // of that layer, when the dtype is kFp8Static
};

// Whether convert_layer can turn pages of the one layout into pages of the other: they may differ
// in dtype only.
bool convertible(const PageLayout& from, const PageLayout& to);

// Floats that convert_layer needs to work in.
size_t conversion_scratch_floats(const PageLayout& layout);

// Writes the layer at `target` (to.layout.layer_bytes() bytes) with the values of the one at
// `source`, tokens that were never written included (their bytes mean nothing on either side). Each
// value is widened exactly, then rounded once; where dtype and scales are the same the bytes are
// copied as they are. The same bits with every instruction set. `from` and `to` are convertible;
// `scratch` holds conversion_scratch_floats() floats, 64-byte aligned.
void convert_layer(const cpu::Kernels& kernels, const LayerFormat& from, const std::byte* source,
                   const LayerFormat& to, std::byte* target, std::span<float> scratch);

}  // namespace tandem::ops
