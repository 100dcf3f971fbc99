// Which blocks a page group still needs (DESIGN §4, "Window and chunked groups"): one rule for
// admission, prefix hits, page release and handoffs.
#pragma once

#include <cstdint>

namespace tandem::protocol {

// The first block that rows at `position` or later can see through `window` (0: everything; else
// the last `window` positions, the row's own among them).
constexpr int64_t first_live_block(int32_t window, int64_t position, int32_t block_tokens) {
  const int64_t first = position - window + 1;
  return window <= 0 || first <= 0 ? 0 : first / block_tokens;
}

}  // namespace tandem::protocol
