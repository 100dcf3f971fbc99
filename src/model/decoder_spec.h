// DecoderSpec: everything that tells one decoder-only transformer from another, as facts. A family
// reads a checkpoint's configuration into one; decoder.cc runs it.
//
// A layer: x += post_norm(attention(pre_norm(x))); x += post_norm(ffn(pre_norm(x))), with
// ffn(h) = down(activation(gate h) * (up h)). Norms that a family lacks are left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config_reader.h"
#include "model/model.h"
#include "model/rope.h"
#include "ops/operators.h"
#include "weights/checkpoint.h"

namespace tandem::model {

// What the files call a layer's tensors, without the layer's prefix and without ".weight".
struct TensorNames {
  std::string embedding = "token_embd";
  std::string final_norm = "output_norm";
  std::string output = "output";
  std::string layer_prefix = "blk.";  // then the layer's number and a dot
  std::string attention_norm = "attn_norm";
  std::string q = "attn_q";
  std::string k = "attn_k";
  std::string v = "attn_v";
  std::string qkv = "attn_qkv";
  std::string q_norm = "attn_q_norm";
  std::string k_norm = "attn_k_norm";
  std::string attention_out = "attn_output";
  std::string attention_post_norm = "post_attention_norm";
  std::string ffn_norm = "ffn_norm";
  std::string gate = "ffn_gate";
  std::string up = "ffn_up";
  std::string gate_up = "ffn_up";
  std::string down = "ffn_down";
  std::string ffn_post_norm = "post_ffw_norm";
};

enum class QkNorm : uint8_t { kNone, kHead, kProjection };

struct DecoderLayer {
  int32_t window = 0;  // see ops::AttentionLayer
  int32_t rope = 0;    // index into DecoderSpec.ropes; -1: no positions
};

struct DecoderSpec {
  ModelConfig config;
  bool long_rope = false;  // of two sets of rotary divisors, the one for long contexts was taken
  TensorNames names;
  std::vector<DecoderLayer> layers;
  std::vector<ops::Rope> ropes;
  ops::Activation activation = ops::Activation::kSilu;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool ffn_bias = false;
  // How this family's GGUF files order the rows of q and k (config.json's order is half-split).
  ops::RopePairing gguf_pairing = ops::RopePairing::kHalves;
  bool pre_norm = true;
  bool post_norm = false;
  float norm_offset = 0;       // added to every norm weight of the file
  bool fused_qkv = false;      // one tensor: q's rows, k's, v's
  bool fused_gate_up = false;  // one tensor: gate's rows, up's
  float attention_scale = 1;
  float attention_softcap = 0;  // 0: none
  float final_softcap = 0;      // 0: none
  float embedding_scale = 1;
  // Tensors that are no layer's: read while the spec was made, or of no use to text.
  std::vector<std::string> other_tensors;
  std::vector<std::string> other_prefixes;
};

std::vector<int32_t> windows_of(const DecoderSpec& spec);  // each layer's

// What a family reads its spec from.
struct ModelSource {
  const weights::Checkpoint& checkpoint;
  ConfigReader config;
  int32_t served_context = 0;  // 0: the configuration's own

  bool is_gguf() const { return checkpoint.is_gguf(); }
};

// The facts that every family's configuration gives, under either kind of file's names: sizes, the
// vocabulary from the embedding, tied output, epsilon, one rope table with its scaling, scale
// head_dim^-0.5, pairing and tensor names by kind of file. `hf_defaults` are used for keys that a
// config.json may leave out.
struct CommonDefaults {
  std::optional<int32_t> heads = {};
  std::optional<int32_t> kv_heads = {};  // absent: as many as heads
  std::optional<int32_t> head_dim = {};  // absent: hidden / heads
  std::optional<int32_t> context = {};
  double theta = 10000;
  std::optional<double> epsilon = {};
  bool rope = true;  // false: the family reads its own rope tables
};
Result<DecoderSpec> read_common(const ModelSource& source, const CommonDefaults& hf_defaults = {});

// The rope tables' facts as the configuration has them (GGUF keys, or `rope_scaling` /
// `rope_parameters`), for families with tables of their own.
Result<RopeFacts> read_rope_facts(const ModelSource& source, DecoderSpec& spec,
                                  double default_theta);

// Gives every layer `window` where config.json's `layer_types` says "sliding_attention". False when
// there is no such key.
Result<bool> apply_layer_types(const ModelSource& source, int32_t window, DecoderSpec& spec);

// Error unless the activation that config.json names is `expected` ("silu").
Status expect_activation(const ModelSource& source, std::string_view key,
                         std::string_view expected);

}  // namespace tandem::model
