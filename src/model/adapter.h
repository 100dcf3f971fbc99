// LoRA adapters: low-rank products added to a decoder's projections, from a PEFT directory
// (adapter_config.json beside adapter_model.safetensors) or a GGUF adapter file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/decoder_spec.h"
#include "ops/executor.h"
#include "ops/operators.h"
#include "weights/checkpoint.h"

namespace tandem::model {

enum class Projection : uint8_t { kQ, kK, kV, kAttentionOut, kGate, kUp, kDown };
inline constexpr size_t kProjections = 7;

struct Adapter {
  using Layer = std::array<std::optional<ops::LowRank>, kProjections>;
  std::vector<Layer> layers;
  int32_t rank = 0;  // the largest
  size_t bytes = 0;
};

// Inputs and outputs of one projection of `config`.
struct ProjectionShape {
  int32_t inputs = 0;
  int32_t outputs = 0;
};
ProjectionShape projection_shape(const ModelConfig& config, Projection projection);

// Errors (400): "invalid_adapter" when files contradict each other or the model's shapes,
// "unsupported_adapter" when the adapter does something else than add low-rank products to the
// seven projections (another method, DoRA, biases, whole modules, embeddings).
Result<Adapter> read_adapter(const weights::Checkpoint& files, const DecoderSpec& base,
                             bool base_is_gguf, const ops::CpuExecutor& executor);

}  // namespace tandem::model
