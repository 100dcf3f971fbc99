#include "model/memory_budget.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"

namespace tandem::model {

Result<MemoryBudget> plan_memory(const ModelMemory& memory, const ops::PageLayout& layout,
                                 size_t kv_bytes, int64_t min_tokens) {
  if (layout.block_tokens <= 0 || layout.page_bytes() == 0)
    return internal_error("the page layout is empty");
  MemoryBudget budget;
  budget.weights = memory.weights;
  budget.activations = memory.activations;
  budget.block_tokens = layout.block_tokens;
  budget.page_stride = (layout.page_bytes() + 63) / 64 * 64;
  const size_t pages =
      std::min(kv_bytes / budget.page_stride, size_t{std::numeric_limits<int32_t>::max()});
  const auto needed = static_cast<size_t>(
      (std::max<int64_t>(min_tokens, 1) + layout.block_tokens - 1) / layout.block_tokens);
  if (pages < needed) {
    return make_error(400, "kv_memory_too_small",
                      "the KV memory of " + format_bytes(kv_bytes) + " holds " +
                          std::to_string(pages * static_cast<size_t>(layout.block_tokens)) +
                          " tokens; " + std::to_string(min_tokens) + " tokens take " +
                          format_bytes(needed * budget.page_stride) +
                          ": raise it or lower the context length");
  }
  budget.pages = static_cast<int32_t>(pages);
  budget.kv = pages * budget.page_stride;
  budget.tokens = static_cast<int64_t>(pages) * layout.block_tokens;
  return budget;
}

}  // namespace tandem::model
