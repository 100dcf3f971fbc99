// Llama 2 and 3.x: pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and a
// SiLU-gated feed-forward block. Mistral adds a sliding window, SmolLM3 leaves positions out of
// every fourth layer. A GGUF's q and k rows are ordered for adjacent-pair rotation.
#include "model/families.h"

namespace tandem::model {

namespace {

Result<DecoderSpec> read_kin(const ModelSource& source, const CommonDefaults& defaults) {
  TANDEM_TRY(spec, read_common(source, defaults));
  TANDEM_CHECK(expect_activation(source, "hidden_act", "silu"));
  spec.gguf_pairing = ops::RopePairing::kAdjacent;
  if (source.is_gguf()) {
    spec.ropes[0].pairing = spec.gguf_pairing;
    const auto has = [&](std::string_view name) {
      return source.checkpoint.find_tensor("blk.0." + std::string(name)) != nullptr;
    };
    spec.qkv_bias = has("attn_q.bias");
    spec.attention_out_bias = has("attn_output.bias");
    spec.ffn_bias = has("ffn_down.bias");
  } else {
    TANDEM_TRY(attention_bias, source.config.boolean("attention_bias", false));
    TANDEM_TRY(ffn_bias, source.config.boolean("mlp_bias", false));
    spec.qkv_bias = spec.attention_out_bias = attention_bias;
    spec.ffn_bias = ffn_bias;
  }
  return spec;
}

}  // namespace

Result<DecoderSpec> read_llama(const ModelSource& source) {
  return read_kin(source, {.context = 2048, .epsilon = 1e-6});
}

Result<DecoderSpec> read_mistral(const ModelSource& source) {
  TANDEM_TRY(spec, read_kin(source, {.kv_heads = 8, .context = 131072, .epsilon = 1e-6}));
  const bool gguf = source.is_gguf();
  // A null means none; only an absent key means the family's own.
  const int32_t usual = gguf || source.config.is_null("sliding_window") ? 0 : 4096;
  TANDEM_TRY(window, source.config.integer(gguf ? "attention.sliding_window" : "sliding_window", 0,
                                           1 << 24, usual));
  TANDEM_TRY(typed, apply_layer_types(source, window, spec));
  if (!typed) {
    for (DecoderLayer& layer : spec.layers) layer.window = window;
  }
  return spec;
}

Result<DecoderSpec> read_smollm3(const ModelSource& source) {
  TANDEM_TRY(
      spec,
      read_kin(source,
               {.heads = 16, .kv_heads = 4, .context = 32768, .theta = 2e6, .epsilon = 1e-6}));
  const ConfigReader& config = source.config;
  config.ignore("max_window_layers");  // copied from another family's configuration
  TANDEM_TRY(interval, config.integer("no_rope_layer_interval", 1, 1024, 4));
  TANDEM_TRY(rotated, config.per_layer("no_rope_layers", spec.config.layers));  // 1: rotates
  for (int32_t i = 0; i < spec.config.layers; ++i) {
    const bool rotates =
        rotated.empty() ? (i + 1) % interval != 0 : rotated[i].as_integer() == int64_t{1};
    if (!rotates) spec.layers[i].rope = -1;
  }
  TANDEM_TRY(use_window, config.boolean("use_sliding_window", false));
  TANDEM_TRY(window, config.integer("sliding_window", 0, 1 << 24, 0));
  TANDEM_TRY(typed, apply_layer_types(source, window, spec));
  if (!typed && use_window) {
    for (DecoderLayer& layer : spec.layers) layer.window = layer.rope < 0 ? window : 0;
  }
  return spec;
}

}  // namespace tandem::model
