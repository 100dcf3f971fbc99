// The table of architectures, by the names that GGUF files and Hugging Face directories give them.
// load_model() hands a checkpoint to the family that knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "weights/checkpoint.h"

namespace tandem::model {

struct ModelOptions {
  Numerics numerics = Numerics::kFast;
  // Of rows that are a prompt's (SequenceRows::prompt), whose weights are then held a second time.
  std::optional<Numerics> prompt_numerics = {};
  int threads = 1;         // compute threads, the caller's included
  int32_t max_rows = 512;  // rows of one forward pass; sizes the activation buffers
  // The longest sequence that will be served; 0: the configuration's context. Decides between the
  // two frequency tables of models whose rotary positions are stretched beyond a certain context.
  int32_t served_context = 0;
  std::optional<ops::KvDtype> kv_dtype = {};  // of the pages; default_kv_dtype() if none
  std::string
      isa;  // "scalar", "avx2", "avx512", "amx"; empty: TANDEM_ISA, else the machine's highest
};

// Checks the checkpoint and packs its weights; it stays open for what is read in place. Errors (all
// 400 but out_of_memory) say what the file lacks or what this program does not support:
// "model_not_found", "invalid_model", "unsupported_model", "unsupported_isa".
Result<std::unique_ptr<Model>> load_model(weights::Checkpoint checkpoint,
                                          const ModelOptions& options);
// Opens `path` (weights::Checkpoint::open) first.
Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options);

// Reads only the configuration, for `inspect`.
Result<ModelConfig> read_model_config(const weights::Checkpoint& checkpoint);

// What a model's pages will be, for memory budgets before loading.
struct ModelPages {
  ModelConfig config;
  ops::PageLayout layout;
  std::vector<PageGroup> groups;
};
Result<ModelPages> read_model_pages(const weights::Checkpoint& checkpoint, ops::KvDtype dtype,
                                    int32_t block_tokens);

}  // namespace tandem::model
