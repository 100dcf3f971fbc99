// OLMo 2: no norms before the blocks, norms behind them, and norms over the whole q and k
// projections before rotation.
#include "model/families.h"

namespace tandem::model {

Result<DecoderSpec> read_olmo2(const ModelSource& source) {
  TANDEM_TRY(spec, read_common(source, {.context = 2048, .epsilon = 1e-5}));
  TANDEM_CHECK(expect_activation(source, "hidden_act", "silu"));
  TANDEM_TRY(bias, source.config.boolean("attention_bias", false));
  spec.qkv_bias = spec.attention_out_bias = bias;
  spec.pre_norm = false;
  spec.post_norm = true;
  spec.qk_norm = QkNorm::kProjection;
  return spec;
}

}  // namespace tandem::model
