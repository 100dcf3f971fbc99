// Checks a forward batch against a model's limits before any kernel sees it: the engine's mistakes
// end one pass, not the process.
#pragma once

#include "base/result.h"
#include "model/model.h"

namespace tandem::model {

struct BatchLimits {
  const ModelConfig& config;
  ops::PageLayout layout;
  std::span<const PageGroup> groups;
  int32_t max_rows = 0;
  int32_t adapters = 0;
};

Status check_batch(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                   const BatchLimits& limits, size_t logits_size);

}  // namespace tandem::model
