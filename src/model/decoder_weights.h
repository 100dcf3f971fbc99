// A decoder's weights in memory, and how they are found in a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/decoder_spec.h"
#include "model/model.h"
#include "model/tensor_loader.h"
#include "ops/executor.h"
#include "ops/kv_scales.h"
#include "ops/packed_matrix.h"
#include "weights/checkpoint.h"

namespace tandem::model {

struct DecoderLayerWeights {  // vectors are empty where the spec has none
  std::vector<float> attention_norm, attention_post_norm, ffn_norm, ffn_post_norm;
  std::vector<float> q_norm, k_norm;
  std::vector<float> q_bias, k_bias, v_bias, attention_out_bias;
  std::vector<float> gate_bias, up_bias, down_bias;
  ops::PackedMatrix q, k, v, attention_out, gate, up, down;
};

struct DecoderWeights {
  ops::WeightArena arena;                      // of all matrices below
  const weights::Tensor* embedding = nullptr;  // read in place, one row per token
  std::vector<DecoderLayerWeights> layers;
  std::vector<float> final_norm;
  ops::PackedMatrix output;
  ops::KvScales kv_scales;
  InputForms forms;  // of the layers' matrices
  InputForms output_forms;
  size_t bytes = 0;
};

// The scales of FP8 pages are one number for all heads of a layer or one for each, in float; layers
// without have 1. Errors name a tensor that is missing, has another shape, or that the spec has no
// use for.
Result<DecoderWeights> load_decoder_weights(const weights::Checkpoint& checkpoint,
                                            const DecoderSpec& spec,
                                            const ops::CpuExecutor& executor, Numerics numerics);

}  // namespace tandem::model
