#include <algorithm>

#include "kv/manager/kv_manager.h"

namespace tandem::kv {

size_t PageDemand::blocks_for(size_t tokens) const {
  const auto block = static_cast<size_t>(block_tokens);
  return (tokens + block - 1) / block;
}

size_t PageDemand::group_peak(int32_t window, size_t tokens) const {
  const size_t blocks = blocks_for(tokens);
  if (window <= 0) return blocks;
  // From the oldest position that is kept to the last row that is planned: a run of that many
  // tokens touches one block more when it begins within one.
  const auto block = static_cast<size_t>(block_tokens);
  const size_t run =
      static_cast<size_t>(window) - 1 + static_cast<size_t>(kept_tokens + rows_in_flight);
  return std::min(blocks, (run + block - 2) / block + 1);
}

size_t PageDemand::peak(size_t tokens) const {
  size_t pages = 0;
  for (const int32_t window : windows) pages += group_peak(window, tokens);
  return pages;
}

int32_t PageDemand::longest(int32_t pages, int32_t limit) const {
  const auto fits = [&](size_t blocks) {
    return peak(blocks * static_cast<size_t>(block_tokens)) <= static_cast<size_t>(pages);
  };
  size_t low = 0;
  size_t high = blocks_for(static_cast<size_t>(limit));
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    fits(middle) ? low = middle : high = middle - 1;
  }
  return static_cast<int32_t>(
      std::min<size_t>(low * static_cast<size_t>(block_tokens), static_cast<size_t>(limit)));
}

PageDemand page_demand(const KvManagerOptions& options) {
  PageDemand demand;
  demand.block_tokens = options.block_tokens;
  demand.windows = options.windows;
  demand.rows_in_flight = options.rows_in_flight;
  demand.kept_tokens = std::max(options.roll_back_tokens, options.block_tokens);
  return demand;
}

}  // namespace tandem::kv
