#include "model/memory_budget.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"

namespace tandem::model {

namespace {

int64_t blocks_of(int64_t tokens, int32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// The longest sequence whose pages are at most `pages`; 0 when none is.
int64_t longest(const KvNeeds& needs, int64_t pages, int32_t block_tokens) {
  int64_t low = 0;
  int64_t high = pages;  // blocks: each takes a page of some group at least, until it is passed
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (needs.pages(middle * block_tokens, block_tokens) <= pages) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * block_tokens;
}

}  // namespace

int64_t KvNeeds::pages(int64_t tokens, int32_t block_tokens) const {
  int64_t total = 0;
  for (const PageGroup& group : groups) {
    const int64_t all = blocks_of(tokens, block_tokens);
    // The positions that a pass's first row sees and the pass's own need not start with a block.
    const int64_t live = blocks_of(int64_t{group.window} + pass_tokens, block_tokens) + 1;
    total += group.window > 0 ? std::min(all, live) : all;
  }
  return total;
}

Result<MemoryBudget> plan_memory(const ModelMemory& memory, const ops::PageLayout& layout,
                                 size_t kv_bytes, const KvNeeds& needs) {
  if (layout.block_tokens <= 0 || layout.page_bytes() == 0 || needs.groups.empty())
    return internal_error("the page layout is empty");
  MemoryBudget budget;
  budget.weights = memory.weights;
  budget.activations = memory.activations;
  budget.kv_dtype = layout.dtype;
  budget.block_tokens = layout.block_tokens;
  budget.page_stride = (layout.page_bytes() + 63) / 64 * 64;
  const size_t pages =
      std::min(kv_bytes / budget.page_stride, size_t{std::numeric_limits<int32_t>::max()});
  const auto needed =
      static_cast<size_t>(needs.pages(std::max<int64_t>(needs.min_tokens, 1), layout.block_tokens));
  budget.tokens = longest(needs, static_cast<int64_t>(pages), layout.block_tokens);
  if (pages < needed) {
    return make_error(
        400, "kv_memory_too_small",
        "the KV memory of " + format_bytes(kv_bytes) + " holds " + std::to_string(budget.tokens) +
            " tokens; " + std::to_string(needs.min_tokens) + " tokens take " +
            format_bytes(needed * budget.page_stride) + ": give more with --kv-memory");
  }
  budget.growing_groups = static_cast<int32_t>(std::ranges::count_if(
      needs.groups, [](const PageGroup& group) { return group.window == 0; }));
  const int64_t far = int64_t{1} << 32;  // beyond every window
  budget.window_pages =
      static_cast<int32_t>(needs.pages(far, layout.block_tokens) -
                           budget.growing_groups * blocks_of(far, layout.block_tokens));
  budget.pages = static_cast<int32_t>(pages);
  budget.kv = pages * budget.page_stride;
  return budget;
}

}  // namespace tandem::model
