#include "engine/tokenizer_source.h"

#include <algorithm>
#include <array>

#include "numerics/digest.h"

namespace tandem::engine {
namespace {

int32_t optional_id(const weights::GgufFile& file, std::string_view key, size_t vocab) {
  if (file.find(key) == nullptr) return -1;
  const auto value = file.integer(key);
  return value && *value >= 0 && static_cast<size_t>(*value) < vocab ? static_cast<int32_t>(*value)
                                                                     : -1;
}

bool optional_flag(const weights::GgufFile& file, std::string_view key) {
  if (file.find(key) == nullptr) return false;
  const auto value = file.boolean(key);
  return value && *value;
}

// Control tokens that end a turn in some family, whatever the file says about eos.
constexpr std::array<std::string_view, 6> kTurnEnds = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"};

}  // namespace

Result<text::TokenizerSpec> tokenizer_spec_of(const weights::Checkpoint& checkpoint) {
  if (!checkpoint.is_gguf()) {
    return make_error(400, "unsupported_tokenizer", "Only GGUF tokenizers are supported.");
  }
  const weights::GgufFile& file = *checkpoint.gguf();
  text::TokenizerSpec spec;
  TANDEM_TRY(model, file.string("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return make_error(400, "unsupported_tokenizer",
                      "The model's tokenizer is \"" + std::string(model) +
                          "\"; byte-level BPE (\"gpt2\") is supported.");
  }
  spec.kind = "bpe";
  if (file.find("tokenizer.ggml.pre") != nullptr) {
    TANDEM_TRY(pre, file.string("tokenizer.ggml.pre"));
    spec.pre = std::string(pre);
  }
  TANDEM_TRY(tokens, file.strings("tokenizer.ggml.tokens"));
  spec.tokens.assign(tokens.begin(), tokens.end());
  TANDEM_TRY(merges, file.strings("tokenizer.ggml.merges"));
  spec.merges.assign(merges.begin(), merges.end());
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    TANDEM_TRY(types, file.integers("tokenizer.ggml.token_type"));
    if (types.size() != spec.tokens.size()) {
      return make_error(400, "invalid_model",
                        "tokenizer.ggml.token_type does not have one entry per token.");
    }
    for (const int64_t type : types) spec.types.push_back(static_cast<int32_t>(type));
  }
  const size_t vocab = spec.tokens.size();
  spec.bos = optional_id(file, "tokenizer.ggml.bos_token_id", vocab);
  spec.eos = optional_id(file, "tokenizer.ggml.eos_token_id", vocab);
  spec.unknown = optional_id(file, "tokenizer.ggml.unknown_token_id", vocab);
  spec.pad = optional_id(file, "tokenizer.ggml.padding_token_id", vocab);
  spec.add_bos = optional_flag(file, "tokenizer.ggml.add_bos_token");
  spec.add_eos = optional_flag(file, "tokenizer.ggml.add_eos_token");
  for (const int32_t id : {spec.eos, optional_id(file, "tokenizer.ggml.eot_token_id", vocab),
                           optional_id(file, "tokenizer.ggml.eom_token_id", vocab)}) {
    if (id >= 0) spec.end_of_generation.push_back(id);
  }
  for (size_t id = 0; id < vocab; ++id) {
    const bool control =
        id < spec.types.size() && spec.types[id] == static_cast<int32_t>(text::TokenType::kControl);
    if (control && std::ranges::find(kTurnEnds, spec.tokens[id]) != kTurnEnds.end()) {
      spec.end_of_generation.push_back(static_cast<int32_t>(id));
    }
  }
  std::ranges::sort(spec.end_of_generation);
  const auto repeated = std::ranges::unique(spec.end_of_generation);
  spec.end_of_generation.erase(repeated.begin(), repeated.end());
  if (file.find("tokenizer.chat_template") != nullptr) {
    TANDEM_TRY(source, file.string("tokenizer.chat_template"));
    spec.chat_template = std::string(source);
  }
  return spec;
}

std::string lineage_of(const weights::Checkpoint& checkpoint) {
  return numerics::to_hex(checkpoint.digest());
}

}  // namespace tandem::engine
