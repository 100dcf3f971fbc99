// Qwen2: Llama with biases on q, k and v. Qwen3: without them, with an RMSNorm on each head of q
// and k before rotation. Both may give their later layers a sliding window.
#include "model/families.h"

namespace tandem::model {
namespace {

Result<DecoderSpec> read_qwen(const ModelSource& source, const CommonDefaults& defaults) {
  TANDEM_TRY(spec, read_common(source, defaults));
  TANDEM_CHECK(expect_activation(source, "hidden_act", "silu"));
  const ConfigReader& config = source.config;
  TANDEM_TRY(use_window, config.boolean("use_sliding_window", false));
  const bool absent = !config.has("sliding_window") && !config.is_null("sliding_window");
  TANDEM_TRY(size, config.integer("sliding_window", 0, 1 << 24, absent ? 4096 : 0));
  const int32_t window = use_window ? size : 0;
  TANDEM_TRY(first, config.integer("max_window_layers", 0, 1 << 20, 28));
  TANDEM_TRY(typed, apply_layer_types(source, window, spec));
  if (!typed && use_window) {
    for (int32_t i = first; i < spec.config.layers; ++i) spec.layers[i].window = window;
  }
  return spec;
}

}  // namespace

Result<DecoderSpec> read_qwen2(const ModelSource& source) {
  TANDEM_TRY(spec, read_qwen(source, {.context = 32768, .epsilon = 1e-6}));
  spec.qkv_bias = true;
  return spec;
}

Result<DecoderSpec> read_qwen3(const ModelSource& source) {
  TANDEM_TRY(spec, read_qwen(source, {.head_dim = 128, .context = 32768, .epsilon = 1e-6}));
  TANDEM_TRY(bias, source.config.boolean("attention_bias", false));
  spec.qkv_bias = spec.attention_out_bias = bias;
  spec.qk_norm = QkNorm::kHead;
  return spec;
}

}  // namespace tandem::model
