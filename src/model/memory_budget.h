// The one memory budget of a worker: weights, activations, KV pages; printed at start, refused
// early when it cannot work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/model.h"
#include "ops/page_layout.h"

namespace tandem::model {

struct MemoryBudget {  // bytes unless said
  size_t weights = 0;
  size_t activations = 0;
  size_t kv = 0;           // pages * page_stride
  size_t page_stride = 0;  // a page's bytes rounded up to 64
  int32_t block_tokens = 0;
  int32_t pages = 0;
  int64_t tokens = 0;  // pages * block_tokens: what the KV cache holds over all sequences

  size_t total() const { return weights + activations + kv; }
  size_t bytes_per_token() const {
    return block_tokens > 0 ? page_stride / static_cast<size_t>(block_tokens) : 0;
  }
};

// As many pages as fit in `kv_bytes`. Error 400 "kv_memory_too_small", naming the bytes it takes,
// when they cannot hold one sequence of `min_tokens` tokens.
Result<MemoryBudget> plan_memory(const ModelMemory& memory, const ops::PageLayout& layout,
                                 size_t kv_bytes, int64_t min_tokens);

}  // namespace tandem::model
