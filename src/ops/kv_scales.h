// KvScales: the scales of a model's static FP8 pages, one for each layer and KV head, for K and for
// V. They come with the checkpoint, or are 1; they never change, and are part of the representation
// of every page written with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/page_layout.h"

namespace tandem::ops {

struct KvScales {
  int32_t kv_heads = 0;
  std::vector<float> k, v;  // [layer][KV head]; empty: 1 everywhere

  KvScaleView of(int32_t layer) const {
    if (k.empty()) return {};
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(kv_heads);
    return {k.data() + first, v.data() + first};
  }
  // "1" when all are, else 16 hexadecimal digits of a digest.
  std::string digest() const;
};

}  // namespace tandem::ops
