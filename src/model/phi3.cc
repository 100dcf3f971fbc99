// Phi-3 and Phi-4: Llama with q, k, v in one tensor and gate, up in another; may rotate only part
// of each head, and stretch its context by longrope.
#include "model/families.h"

namespace tandem::model {

Result<DecoderSpec> read_phi3(const ModelSource& source) {
  TANDEM_TRY(spec, read_common(source, {.context = 4096, .epsilon = 1e-5}));
  TANDEM_CHECK(expect_activation(source, "hidden_act", "silu"));
  spec.fused_qkv = true;
  spec.fused_gate_up = true;
  TANDEM_TRY(bias, source.config.boolean("attention_bias", false));
  if (bias) return unsupported_model(source.config.name("attention_bias") + " is not supported");
  // Knobs of its first implementation, only ever 1.
  TANDEM_CHECK(source.config.integer("full_attn_mod", 1, 1, 1));
  TANDEM_CHECK(source.config.integer("interpolate_factor", 1, 1, 1));
  TANDEM_TRY(window,
             source.config.integer(source.is_gguf() ? "attention.sliding_window" : "sliding_window",
                                   0, 1 << 24, 0));
  for (DecoderLayer& layer : spec.layers) layer.window = window;
  return spec;
}

}  // namespace tandem::model
