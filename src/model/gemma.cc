// Gemma 2 and 3: norms before and behind both blocks with weights 1 + w (a GGUF's already have the
// 1 added), embeddings scaled by sqrt(hidden), GELU gates, queries scaled by a number of the
// configuration. Gemma 2 caps scores and logits and gives every other layer a window; Gemma 3 norms
// q and k and gives five of six layers a window and a rope table of their own.
#include <cmath>

#include "model/families.h"

namespace tandem::model {
namespace {

struct Sizes {
  CommonDefaults defaults;
  int32_t window;
  int32_t pattern;      // every pattern-th layer sees everything
  int32_t wide_layers;  // the one size of the family whose query scale is that of hidden / heads
};

Result<DecoderSpec> read_gemma(const ModelSource& source, const Sizes& sizes) {
  TANDEM_TRY(spec, read_common(source, sizes.defaults));
  const ConfigReader& config = source.config;
  ModelConfig& c = spec.config;
  spec.activation = ops::Activation::kGeluTanh;
  spec.post_norm = true;
  spec.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
  if (source.is_gguf()) {
    const int32_t divisor = c.layers == sizes.wide_layers ? c.hidden / c.heads : c.head_dim;
    TANDEM_TRY(scale, config.positive_real("attention.scale", 1 / std::sqrt(divisor)));
    spec.attention_scale = static_cast<float>(scale);
    return spec;
  }
  spec.norm_offset = 1;
  spec.names.ffn_norm = "pre_feedforward_layernorm";
  TANDEM_CHECK(expect_activation(source, "hidden_act", "gelu_pytorch_tanh"));
  TANDEM_CHECK(expect_activation(source, "hidden_activation", "gelu_pytorch_tanh"));
  TANDEM_TRY(scalar, config.positive_real("query_pre_attn_scalar", 256.0));
  spec.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  TANDEM_TRY(bias, config.boolean("attention_bias", false));
  spec.qkv_bias = spec.attention_out_bias = bias;
  return spec;
}

Status read_windows(const ModelSource& source, const Sizes& sizes, DecoderSpec& spec) {
  const ConfigReader& config = source.config;
  const bool gguf = source.is_gguf();
  TANDEM_TRY(window, config.integer(gguf ? "attention.sliding_window" : "sliding_window", 1,
                                    1 << 24, sizes.window));
  TANDEM_TRY(typed, apply_layer_types(source, window, spec));
  const std::string_view key = gguf ? "attention.sliding_window_pattern" : "sliding_window_pattern";
  const JsonValue* pattern = config.find(key);
  if (typed) return {};
  if (pattern != nullptr && pattern->is_array()) {  // true: a window
    TANDEM_TRY(flags, config.per_layer(key, spec.config.layers));
    for (size_t i = 0; i < flags.size(); ++i)
      spec.layers[i].window = flags[i].as_bool() ? window : 0;
    return {};
  }
  TANDEM_TRY(every, config.integer(key, 1, 1024, sizes.pattern));
  for (int32_t i = 0; i < spec.config.layers; ++i)
    spec.layers[i].window = (i + 1) % every != 0 ? window : 0;
  return {};
}

Status read_softcaps(const ModelSource& source, double attention, double final, DecoderSpec& spec) {
  const auto cap = [&](std::string_view key, double fallback) -> Result<float> {
    // A null or 0 means none; only an absent key means the family's own.
    const JsonValue* value = source.config.find(key);
    if (value == nullptr) return source.config.is_null(key) ? 0.0F : static_cast<float>(fallback);
    if (value->is_number() && value->as_double() == 0.0) return 0.0F;
    TANDEM_TRY(number, source.config.positive_real(key));
    return static_cast<float>(number);
  };
  TANDEM_TRY(scores, cap("attn_logit_softcapping", attention));
  TANDEM_TRY(logits, cap("final_logit_softcapping", final));
  spec.attention_softcap = scores;
  spec.final_softcap = logits;
  return {};
}

// The global layers' table is the configuration's, the window layers' has no scaling.
Status read_gemma3_ropes(const ModelSource& source, DecoderSpec& spec) {
  ModelConfig& c = spec.config;
  RopeFacts local;
  local.dims = c.head_dim;
  RopeFacts global;
  TANDEM_TRY(parameters, source.config.child("rope_parameters"));
  if (parameters && parameters->has("full_attention")) {
    global.dims = c.head_dim;
    global.theta = 1e6;
    const auto read = [&](std::string_view key, RopeFacts& facts) -> Status {
      TANDEM_TRY(table, parameters->child(key));
      if (!table) return {};
      return read_rope_scaling(*table, c.context_length, c.context_length, facts);
    };
    TANDEM_CHECK(read("full_attention", global));
    TANDEM_CHECK(read("sliding_attention", local));
    TANDEM_CHECK(parameters->finish());
  } else {
    TANDEM_TRY(facts, read_rope_facts(source, spec, 1e6));
    global = facts;
    TANDEM_TRY(theta, source.config.positive_real(
                          source.is_gguf() ? "rope.freq_base_swa" : "rope_local_base_freq", 1e4));
    local.theta = theta;
  }
  TANDEM_TRY(global_rope, make_rope(global, ops::RopePairing::kHalves));
  TANDEM_TRY(local_rope, make_rope(local, ops::RopePairing::kHalves));
  c.rope_theta = static_cast<float>(global.theta);
  c.rope_dims = global.dims;
  spec.ropes = {std::move(global_rope), std::move(local_rope)};
  for (DecoderLayer& layer : spec.layers) layer.rope = layer.window > 0 ? 1 : 0;
  return {};
}

}  // namespace

Result<DecoderSpec> read_gemma2(const ModelSource& source) {
  const Sizes sizes = {
      .defaults = {.heads = 8, .kv_heads = 4, .head_dim = 256, .context = 8192, .epsilon = 1e-6},
      .window = 4096,
      .pattern = 2,
      .wide_layers = 46};
  TANDEM_TRY(spec, read_gemma(source, sizes));
  TANDEM_CHECK(read_windows(source, sizes, spec));
  TANDEM_CHECK(read_softcaps(source, 50, 30, spec));
  return spec;
}

Result<DecoderSpec> read_gemma3(const ModelSource& source) {
  const Sizes sizes = {.defaults = {.heads = 8,
                                    .kv_heads = 4,
                                    .head_dim = 256,
                                    .context = 131072,
                                    .epsilon = 1e-6,
                                    .rope = false},
                       .window = source.is_gguf() ? 1024 : 4096,
                       .pattern = 6,
                       .wide_layers = 62};
  TANDEM_TRY(spec, read_gemma(source, sizes));
  TANDEM_CHECK(read_windows(source, sizes, spec));
  TANDEM_CHECK(read_softcaps(source, 0, 0, spec));
  TANDEM_CHECK(read_gemma3_ropes(source, spec));
  spec.qk_norm = QkNorm::kHead;
  spec.other_prefixes = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                         "model.multi_modal_projector."};
  return spec;
}

}  // namespace tandem::model
