#include <cmath>

#include "model/config_reader.h"
#include "model/llama.h"

namespace tandem::model {
namespace {

// Features that other files of this architecture use and this program does not: running them anyway
// would give wrong text.
Status refuse_unsupported(const ConfigReader& reader) {
  if (reader.has("expert_count")) {
    TANDEM_TRY(experts, reader.integer("expert_count", 0, 1 << 20));
    if (experts > 0) return unsupported_model("mixture-of-experts models are not supported");
  }
  if (reader.has("rope.scaling.type")) {
    TANDEM_TRY(scaling, reader.string("rope.scaling.type"));
    if (scaling != "none") {
      return unsupported_model("RoPE scaling \"" + std::string(scaling.substr(0, 32)) +
                               "\" is not supported");
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_llama_config(const weights::Checkpoint& checkpoint) {
  if (!checkpoint.is_gguf())
    return unsupported_model("only GGUF files of this family are supported");
  const ConfigReader reader(*checkpoint.gguf(), "llama");
  TANDEM_CHECK(refuse_unsupported(reader));
  TANDEM_TRY(layers, reader.integer("block_count", 1, 1024));
  TANDEM_TRY(hidden, reader.integer("embedding_length", 1, 1 << 17));
  TANDEM_TRY(heads, reader.integer("attention.head_count", 1, 4096));
  TANDEM_TRY(kv_heads, reader.integer("attention.head_count_kv", 1, 4096, heads));
  TANDEM_TRY(ffn, reader.integer("feed_forward_length", 1, 1 << 20));
  TANDEM_TRY(context, reader.integer("context_length", 1, 1 << 24));
  TANDEM_TRY(head_dim, reader.integer("attention.key_length", 1, 1024, hidden / heads));
  TANDEM_TRY(value_dim, reader.integer("attention.value_length", 1, 1024, head_dim));
  TANDEM_TRY(rope_dims, reader.integer("rope.dimension_count", 2, 1024, head_dim));
  TANDEM_TRY(epsilon, reader.positive_real("attention.layer_norm_rms_epsilon"));
  TANDEM_TRY(theta, reader.positive_real("rope.freq_base", 10000.0F));

  if (head_dim < 2 || (!reader.has("attention.key_length") && hidden % heads != 0)) {
    return invalid_model("llama.embedding_length must be a multiple of llama.attention.head_count");
  }
  if (heads % kv_heads != 0) {
    return invalid_model(
        "llama.attention.head_count must be a multiple of llama.attention.head_count_kv");
  }
  if (value_dim != head_dim)
    return unsupported_model("keys and values of different lengths are not supported");
  if (rope_dims % 2 != 0 || rope_dims > head_dim) {
    return invalid_model("llama.rope.dimension_count must be even and at most the head's length");
  }

  const weights::Tensor* embedding = checkpoint.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dimension_count != 2) {
    return invalid_model("the model has no token embedding matrix");
  }
  if (embedding->rows() > (1 << 24)) return invalid_model("the vocabulary is too large");

  ModelConfig config;
  config.architecture = "llama";
  config.layers = layers;
  config.hidden = hidden;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.ffn = ffn;
  config.vocab = static_cast<int32_t>(embedding->rows());
  config.context_length = context;
  config.rms_eps = epsilon;
  config.rope_theta = theta;
  config.rope_dims = rope_dims;
  config.tied_embedding = checkpoint.find_tensor("output.weight") == nullptr;
  return config;
}

}  // namespace tandem::model
