// The proof that a list of copies is a resharding: every byte of every page that the dest's ranks
// must hold is written exactly once, for every block of any sequence, with the same byte of the
// same layer, head, plane, dim and token, from a rank that holds it.
//
// Shares nothing with the generator but the meaning of the layouts. Bytes are traced back from
// their place to their coordinates; blocks are series, and a set of series covers the blocks
// exactly once when no two of them meet and their densities sum to that of the blocks held.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "kv/reshard/reshard_plan.h"

namespace tandem::kv {

// Errors: code "kv_layout" when the layouts themselves are impossible, code "kv_coverage" when a
// copy is wrong, or bytes are left out or written twice; the sentence says which.
Status prove_coverage(const std::vector<LayerShape>& model, const KvPlace& source,
                      const KvPlace& dest, std::span<const ReshardCopy> copies);

}  // namespace tandem::kv
