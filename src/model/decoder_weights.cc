#include "model/decoder_weights.h"

#include <limits>

#include "model/config_reader.h"

namespace tandem::model {
namespace {

class LayerLoader {
 public:
  LayerLoader(TensorLoader& loader, const DecoderSpec& spec, int32_t layer)
      : loader_(loader),
        spec_(spec),
        prefix_(spec.names.layer_prefix + std::to_string(layer) + ".") {}

  Result<DecoderLayerWeights> load() {
    TANDEM_CHECK(load_norms());
    TANDEM_CHECK(load_attention());
    TANDEM_CHECK(load_ffn());
    return std::move(w_);
  }

 private:
  Status norm(bool wanted, const std::string& name, int32_t size, std::vector<float>& out) {
    if (!wanted) return {};
    TANDEM_TRY(values, loader_.vector(prefix_ + name + ".weight", size));
    for (float& value : values) value += spec_.norm_offset;
    out = std::move(values);
    return {};
  }
  Status bias(bool wanted, const std::string& name, int32_t size, std::vector<float>& out) {
    if (!wanted) return {};
    TANDEM_TRY(values, loader_.vector(prefix_ + name + ".bias", size));
    out = std::move(values);
    return {};
  }
  // Rows [begin, begin + rows) of a tensor of `total` rows.
  Status matrix(const std::string& name, int32_t total, int32_t columns, int32_t begin,
                int32_t rows, ops::PackedMatrix& out) {
    TANDEM_TRY(packed,
               loader_.matrix_rows(prefix_ + name + ".weight", total, columns, begin, rows));
    out = std::move(packed);
    return {};
  }

  Status load_norms() {
    const TensorNames& n = spec_.names;
    const ModelConfig& c = spec_.config;
    const bool qk = spec_.qk_norm != QkNorm::kNone;
    const bool whole = spec_.qk_norm == QkNorm::kProjection;
    TANDEM_CHECK(norm(spec_.pre_norm, n.attention_norm, c.hidden, w_.attention_norm));
    TANDEM_CHECK(norm(spec_.post_norm, n.attention_post_norm, c.hidden, w_.attention_post_norm));
    TANDEM_CHECK(norm(spec_.pre_norm, n.ffn_norm, c.hidden, w_.ffn_norm));
    TANDEM_CHECK(norm(spec_.post_norm, n.ffn_post_norm, c.hidden, w_.ffn_post_norm));
    TANDEM_CHECK(norm(qk, n.q_norm, c.head_dim * (whole ? c.heads : 1), w_.q_norm));
    return norm(qk, n.k_norm, c.head_dim * (whole ? c.kv_heads : 1), w_.k_norm);
  }

  Status load_attention() {
    const TensorNames& n = spec_.names;
    const ModelConfig& c = spec_.config;
    const int32_t q = c.heads * c.head_dim;
    const int32_t kv = c.kv_heads * c.head_dim;
    if (spec_.fused_qkv) {
      TANDEM_CHECK(matrix(n.qkv, q + 2 * kv, c.hidden, 0, q, w_.q));
      TANDEM_CHECK(matrix(n.qkv, q + 2 * kv, c.hidden, q, kv, w_.k));
      TANDEM_CHECK(matrix(n.qkv, q + 2 * kv, c.hidden, q + kv, kv, w_.v));
    } else {
      TANDEM_CHECK(matrix(n.q, q, c.hidden, 0, q, w_.q));
      TANDEM_CHECK(matrix(n.k, kv, c.hidden, 0, kv, w_.k));
      TANDEM_CHECK(matrix(n.v, kv, c.hidden, 0, kv, w_.v));
      TANDEM_CHECK(bias(spec_.qkv_bias, n.q, q, w_.q_bias));
      TANDEM_CHECK(bias(spec_.qkv_bias, n.k, kv, w_.k_bias));
      TANDEM_CHECK(bias(spec_.qkv_bias, n.v, kv, w_.v_bias));
    }
    TANDEM_CHECK(matrix(n.attention_out, c.hidden, q, 0, c.hidden, w_.attention_out));
    return bias(spec_.attention_out_bias, n.attention_out, c.hidden, w_.attention_out_bias);
  }

  Status load_ffn() {
    const TensorNames& n = spec_.names;
    const ModelConfig& c = spec_.config;
    if (spec_.fused_gate_up) {
      TANDEM_CHECK(matrix(n.gate_up, 2 * c.ffn, c.hidden, 0, c.ffn, w_.gate));
      TANDEM_CHECK(matrix(n.gate_up, 2 * c.ffn, c.hidden, c.ffn, c.ffn, w_.up));
    } else {
      TANDEM_CHECK(matrix(n.gate, c.ffn, c.hidden, 0, c.ffn, w_.gate));
      TANDEM_CHECK(matrix(n.up, c.ffn, c.hidden, 0, c.ffn, w_.up));
      TANDEM_CHECK(bias(spec_.ffn_bias, n.gate, c.ffn, w_.gate_bias));
      TANDEM_CHECK(bias(spec_.ffn_bias, n.up, c.ffn, w_.up_bias));
    }
    TANDEM_CHECK(matrix(n.down, c.hidden, c.ffn, 0, c.hidden, w_.down));
    return bias(spec_.ffn_bias, n.down, c.hidden, w_.down_bias);
  }

  TensorLoader& loader_;
  const DecoderSpec& spec_;
  std::string prefix_;
  DecoderLayerWeights w_;
};

// Appends one layer's scales of K or of V, which quantizers store beside the projection or inside
// it.
Status append_scales(TensorLoader& loader, const weights::Checkpoint& checkpoint,
                     const std::string& attention, const std::string& projection, const char* kind,
                     int32_t kv_heads, std::vector<float>& out, bool& any) {
  const std::string suffix = std::string(".") + kind + "_scale";
  for (const std::string& name : {attention + suffix, projection + suffix}) {
    const weights::Tensor* found = checkpoint.find_tensor(name);
    if (found == nullptr) continue;
    const bool one = found->rows() * found->columns() == 1;
    TANDEM_TRY(values, loader.vector(name, one ? 1 : kv_heads));
    for (const float value : values) {
      if (!(value > 0 && value <= std::numeric_limits<float>::max()))
        return invalid_model("tensor " + name + " must hold positive numbers");
    }
    out.insert(out.end(), one ? static_cast<size_t>(kv_heads) : 0, values.front());
    if (!one) out.insert(out.end(), values.begin(), values.end());
    any = true;
    return {};
  }
  out.insert(out.end(), static_cast<size_t>(kv_heads), 1.0F);
  return {};
}

Result<ops::KvScales> load_kv_scales(TensorLoader& loader, const weights::Checkpoint& checkpoint,
                                     const DecoderSpec& spec) {
  ops::KvScales scales = {.kv_heads = spec.config.kv_heads, .k = {}, .v = {}};
  bool any = false;
  for (int32_t i = 0; i < spec.config.layers; ++i) {
    const std::string layer = spec.names.layer_prefix + std::to_string(i) + ".";
    // "self_attn.k_proj" is inside "self_attn".
    const std::string attention = layer + spec.names.k.substr(0, spec.names.k.find('.'));
    TANDEM_CHECK(append_scales(loader, checkpoint, attention, layer + spec.names.k, "k",
                               spec.config.kv_heads, scales.k, any));
    TANDEM_CHECK(append_scales(loader, checkpoint, attention, layer + spec.names.v, "v",
                               spec.config.kv_heads, scales.v, any));
  }
  if (!any) scales.k = scales.v = {};
  return scales;
}

}  // namespace

Result<DecoderWeights> load_decoder_weights(const weights::Checkpoint& checkpoint,
                                            const DecoderSpec& spec,
                                            const ops::CpuExecutor& executor, Numerics numerics) {
  const ModelConfig& c = spec.config;
  DecoderWeights w;
  TensorLoader loader(checkpoint, executor, w.arena, numerics);
  for (const std::string& name : spec.other_tensors) loader.leave_out(name);
  TANDEM_TRY(embedding, loader.tensor(spec.names.embedding + ".weight", c.vocab, c.hidden));
  w.embedding = embedding;
  for (int32_t i = 0; i < c.layers; ++i) {
    TANDEM_TRY(layer, LayerLoader(loader, spec, i).load());
    w.layers.push_back(std::move(layer));
  }
  TANDEM_TRY(kv_scales, load_kv_scales(loader, checkpoint, spec));
  w.kv_scales = std::move(kv_scales);
  TANDEM_TRY(final_norm, loader.vector(spec.names.final_norm + ".weight", c.hidden));
  for (float& value : final_norm) value += spec.norm_offset;
  w.final_norm = std::move(final_norm);
  w.forms = loader.take_forms();
  const std::string& output = c.tied_embedding ? spec.names.embedding : spec.names.output;
  TANDEM_TRY(packed,
             loader.matrix_rows(output + ".weight", c.vocab, c.hidden, 0, c.vocab, RowsOfX::kFew));
  w.output = std::move(packed);
  TANDEM_CHECK(loader.finish(spec.other_prefixes));
  w.bytes = loader.bytes();
  w.output_forms = loader.take_forms();
  return w;
}

}  // namespace tandem::model
