// Model: one architecture with its weights, able to run a forward pass over paged KV.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "numerics/digest.h"
#include "ops/forward_batch.h"
#include "ops/kv_scales.h"
#include "ops/page_layout.h"

namespace tandem::model {

enum class Numerics : uint8_t {
  kExact,  // float32 activations; for tests and references
  kFast,   // quantized activations; the default
  kBf16,   // weights and activations rounded to BF16, except the output matrix's: for prompts
};
inline const std::vector<std::string> kNumericsWords = {"fast", "exact", "bf16"};
Numerics numerics_of(std::string_view word);  // one of kNumericsWords

// What a model's pages hold unless something else is asked for.
constexpr ops::KvDtype default_kv_dtype(Numerics numerics) {
  return numerics == Numerics::kExact ? ops::KvDtype::kF32 : ops::KvDtype::kBF16;
}

struct ModelConfig {
  std::string architecture;  // "llama"
  int32_t layers = 0;
  int32_t hidden = 0;  // floats of one hidden state (ForwardBatch.hidden_out)
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn = 0;
  int32_t vocab = 0;
  int32_t context_length = 0;
  float rms_eps = 1e-5F;
  float rope_theta = 10000.0F;
  int32_t rope_dims = 0;
  int32_t window = 0;  // of the layers that have one; 0: every layer sees everything
  bool tied_embedding = false;
};

struct ModelMemory {  // bytes
  size_t weights = 0;
  size_t activations = 0;
};

// Layers that share a lifetime rule (DESIGN §3): all of a model's groups have equally many layers,
// so that their pages have one size.
struct PageGroup {
  int32_t window = 0;           // 0: attends to everything; else to the last `window` positions
  std::vector<int32_t> layers;  // in page order
};

// A LoRA adapter in memory.
struct AdapterInfo {
  std::string name;
  int32_t rank = 0;
  size_t bytes = 0;
  numerics::Digest digest;  // of its files: belongs in the identity of KV that it made
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // The layout this model wants its pages in; `block_tokens` is a multiple of 8.
  virtual ops::PageLayout page_layout(int32_t block_tokens) const = 0;
  // page_layout().groups of them. The default is one group of all layers.
  virtual std::vector<PageGroup> page_groups() const;
  // The scales of pages of kFp8Static; 1 for all unless the checkpoint has some.
  virtual const ops::KvScales& kv_scales() const;
  virtual ModelMemory memory() const = 0;
  // Runs `batch` (at most max_rows() rows) and writes logits[i * vocab .. ] for
  // batch.logit_rows[i], as many as the caller asks for and has room for, and the hidden states
  // that batch.hidden_rows asks for. Deterministic and batch-invariant (DESIGN I13): a row's bits
  // depend on its tokens and positions only. Called from one thread at a time. Non-finite logits
  // are reported by the caller, not here.
  virtual Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                         std::span<float> logits) = 0;
  // Called once by a thread that will do nothing else than call forward(): it may be bound to a
  // CPU of its own.
  virtual void bind_caller() {}
  virtual int32_t max_rows() const = 0;

  // LoRA adapters. load_adapter() reads a PEFT directory or a GGUF adapter and returns its index in
  // adapters(), which is what SequenceRows.adapter takes; indices stay valid for the model's life.
  // Not while forward() runs. Rows without an adapter have the same bits whatever is loaded. Errors
  // (400): "adapter_exists" (the name is taken), "invalid_adapter", "unsupported_adapter",
  // "model_not_found" (nothing at `path`). The default has no adapters.
  virtual Result<int32_t> load_adapter(const std::string& name, const std::string& path);
  virtual std::span<const AdapterInfo> adapters() const { return {}; }
  // The index of the adapter of that name; nothing for a name it does not know.
  virtual std::optional<int32_t> find_adapter(std::string_view name) const;

  // Names the numeric path (instruction set, mode, kernel version) for representations:
  // "cpu-avx512-fast-2".
  virtual std::string numeric_path() const = 0;
};

}  // namespace tandem::model
