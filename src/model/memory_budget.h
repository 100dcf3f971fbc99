// The one memory budget of a worker: weights, activations, KV pages; printed at start, refused
// early when it cannot work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
  ops::KvDtype kv_dtype = ops::KvDtype::kBF16;
  int32_t block_tokens = 0;
  int32_t pages = 0;
  int32_t growing_groups = 1;  // page groups without a window: a page for each block
  int32_t window_pages = 0;    // pages that a long sequence keeps in groups with a window, in all
  int64_t tokens = 0;          // the longest sequence that fits, when it is alone

  size_t total() const { return weights + activations + kv; }
  // What each further token of a long sequence takes, on average.
  size_t bytes_per_token() const {
    return block_tokens > 0 ? static_cast<size_t>(growing_groups) * page_stride /
                                  static_cast<size_t>(block_tokens)
                            : 0;
  }
  // What a sequence takes besides, once it is longer than its windows.
  size_t window_bytes() const { return static_cast<size_t>(window_pages) * page_stride; }
};

struct KvNeeds {
  std::span<const PageGroup> groups;
  int32_t pass_tokens = 1;  // the most positions of one sequence in one pass
  int64_t min_tokens = 1;   // of one sequence

  // Pages that one sequence of `tokens` tokens holds at once, at most.
  int64_t pages(int64_t tokens, int32_t block_tokens) const;
};

// As many pages as fit in `kv_bytes`. Error 400 "kv_memory_too_small", naming the bytes it takes,
// when they cannot hold one sequence of `needs.min_tokens` tokens.
Result<MemoryBudget> plan_memory(const ModelMemory& memory, const ops::PageLayout& layout,
                                 size_t kv_bytes, const KvNeeds& needs);

}  // namespace tandem::model
