// The Llama family: pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and a
// SiLU-gated feed-forward block. GGUF architecture "llama", whose Q and K rows are ordered for
// adjacent-pair rotation.
#pragma once

#include <memory>

#include "base/result.h"
#include "model/model.h"
#include "model/registry.h"
#include "weights/checkpoint.h"

namespace tandem::model {

Result<ModelConfig> read_llama_config(const weights::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> load_llama(weights::Checkpoint checkpoint,
                                          const ModelOptions& options);

}  // namespace tandem::model
