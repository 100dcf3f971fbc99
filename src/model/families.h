// The families: each reads a checkpoint's configuration into a DecoderSpec. What a family shares
// with the others comes from read_common(); its file holds what is its own.
#pragma once

#include "base/result.h"
#include "model/decoder_spec.h"

namespace tandem::model {

Result<DecoderSpec> read_llama(const ModelSource& source);    // Llama 2 and 3
Result<DecoderSpec> read_mistral(const ModelSource& source);  // Llama with a sliding window
Result<DecoderSpec> read_smollm3(const ModelSource& source);  // no positions in every fourth layer
Result<DecoderSpec> read_qwen2(const ModelSource& source);    // biases on q, k and v
Result<DecoderSpec> read_qwen3(const ModelSource& source);    // norms on q and k
Result<DecoderSpec> read_gemma2(const ModelSource& source);   // soft-caps, alternating windows
Result<DecoderSpec> read_gemma3(const ModelSource& source);   // five windows, then one full layer
Result<DecoderSpec> read_phi3(const ModelSource& source);     // fused projections, longrope
Result<DecoderSpec> read_olmo2(const ModelSource& source);    // norms behind the blocks only

}  // namespace tandem::model
