// Checks a forward batch against a model's limits before any kernel sees it: the engine's mistakes
// end one pass, not the process.
#pragma once

#include "base/result.h"
#include "model/model.h"

namespace tandem::model {

Status check_batch(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                   const ModelConfig& config, const ops::PageLayout& expected_layout,
                   int32_t max_rows, size_t logits_size);

}  // namespace tandem::model
