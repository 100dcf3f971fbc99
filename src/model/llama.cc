#include "model/llama.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/batch_check.h"
#include "model/config_reader.h"
#include "model/tensor_loader.h"
#include "ops/cpu/dispatch.h"
#include "ops/operators.h"

namespace tandem::model {
namespace {

using ops::Activations;
using ops::PackedMatrix;

struct Layer {
  std::vector<float> attention_norm;
  PackedMatrix q, k, v, attention_out;
  std::vector<float> ffn_norm;
  PackedMatrix gate, up, down;
};

struct Weights {
  const weights::Tensor* embedding = nullptr;  // read in place, one row per token
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  PackedMatrix output;
  std::vector<float> rope_frequencies;  // radians per position, one per rotated pair
  size_t bytes = 0;
};

// One zeroed allocation cut into the buffers of a pass. Called once without memory to count, then
// with.
class Buffers {
 public:
  Buffers(const ModelConfig& config, int32_t max_rows, bool quantized)
      : rows_(max_rows), quantized_(quantized) {
    lay_out(config);
    storage_ = ops::allocate_aligned(bytes_);
    if (storage_) lay_out(config);
  }
  bool valid() const { return storage_ != nullptr; }
  size_t bytes() const { return bytes_; }

  float* x = nullptr;      // the residual stream
  float* delta = nullptr;  // what the last block adds to it
  Activations normed;      // a block's input
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  Activations attended;
  float* gate = nullptr;
  float* up = nullptr;
  Activations ffn;
  Activations last;  // the rows whose logits are wanted
  float* cos_sin = nullptr;
  std::vector<int32_t> positions;

 private:
  void lay_out(const ModelConfig& c) {
    bytes_ = 0;
    const int32_t q_columns = c.heads * c.head_dim;
    const int32_t kv_columns = c.kv_heads * c.head_dim;
    x = floats(c.hidden);
    delta = floats(c.hidden);
    normed = activations(c.hidden);
    q = floats(q_columns);
    k = floats(kv_columns);
    v = floats(kv_columns);
    attended = activations(q_columns);
    gate = floats(c.ffn);
    up = floats(c.ffn);
    ffn = activations(c.ffn);
    last = activations(c.hidden);
    cos_sin = floats(c.rope_dims);
    positions.resize(rows_);
  }

  std::byte* take(size_t bytes) {
    std::byte* at = storage_ ? storage_.get() + bytes_ : nullptr;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }
  float* floats(int32_t columns) {
    return reinterpret_cast<float*>(take(static_cast<size_t>(rows_) * columns * sizeof(float)));
  }
  Activations activations(int32_t columns) {
    Activations a;
    a.columns = columns;
    a.values = floats(columns);
    if (quantized_ && columns % 32 == 0) {
      a.blocks = reinterpret_cast<ops::cpu::ActivationBlock*>(
          take(static_cast<size_t>(rows_) * (columns / 32) * sizeof(ops::cpu::ActivationBlock)));
    }
    return a;
  }

  int32_t rows_;
  bool quantized_;
  ops::AlignedBytes storage_;
  size_t bytes_ = 0;
};

Activations with_rows(Activations a, int32_t rows) {
  a.rows = rows;
  return a;
}

class Llama final : public Model {
 public:
  Llama(weights::Checkpoint checkpoint, ModelConfig config, Weights weights,
        ops::CpuExecutor executor, Buffers buffers, const ModelOptions& options)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        weights_(std::move(weights)),
        executor_(std::move(executor)),
        buffers_(std::move(buffers)),
        numerics_(options.numerics),
        max_rows_(options.max_rows),
        shape_{config_.heads, config_.kv_heads, config_.head_dim, config_.rope_dims / 2},
        attention_(options.max_rows, shape_) {}

  const ModelConfig& config() const override { return config_; }
  int32_t max_rows() const override { return max_rows_; }
  ModelMemory memory() const override {
    return {.weights = weights_.bytes, .activations = buffers_.bytes() + executor_.scratch_bytes()};
  }
  ops::PageLayout page_layout(int32_t block_tokens) const override {
    return {.dtype = numerics_ == Numerics::kExact ? ops::KvDtype::kF32 : ops::KvDtype::kBF16,
            .layout_id = ops::kCpuLayoutId,
            .layers = config_.layers,
            .kv_heads = config_.kv_heads,
            .head_dim = config_.head_dim,
            .block_tokens = block_tokens};
  }
  std::string numeric_path() const override {
    return std::string("cpu-") + executor_.kernels().name +
           (numerics_ == Numerics::kExact ? "-exact-" : "-fast-") +
           std::to_string(ops::cpu::kKernelVersion);
  }

  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                 std::span<float> logits) override;

 private:
  void attention_block(const Layer& layer, int32_t index, const ops::ForwardBatch& batch,
                       const ops::PageArenaView& pages);
  void feed_forward_block(const Layer& layer, int32_t rows);
  void predict(std::span<const int32_t> rows, const Activations& normed, float* logits);

  weights::Checkpoint checkpoint_;
  ModelConfig config_;
  Weights weights_;
  ops::CpuExecutor executor_;
  Buffers buffers_;
  Numerics numerics_;
  int32_t max_rows_;
  ops::AttentionShape shape_;
  ops::AttentionPlan attention_;
};

Status Llama::forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                      std::span<float> logits) {
  TANDEM_CHECK(check_batch(batch, pages, config_, page_layout(pages.layout.block_tokens), max_rows_,
                           logits.size()));
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  if (rows == 0) return {};
  for (const ops::SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      buffers_.positions[sequence.first_row + i] = sequence.first_position + i;
    }
  }
  ops::rope_angles(executor_, std::span(buffers_.positions).first(rows), weights_.rope_frequencies,
                   buffers_.cos_sin);
  attention_.plan(batch.sequences);

  ops::embed(executor_, *weights_.embedding, batch.tokens, buffers_.x);
  const float* delta = nullptr;
  for (int32_t i = 0; i < config_.layers; ++i) {
    const Layer& layer = weights_.layers[i];
    const Activations normed = with_rows(buffers_.normed, rows);
    ops::add_rms_norm(executor_, delta, buffers_.x, layer.attention_norm.data(), config_.rms_eps,
                      normed);
    attention_block(layer, i, batch, pages);
    ops::add_rms_norm(executor_, buffers_.delta, buffers_.x, layer.ffn_norm.data(), config_.rms_eps,
                      normed);
    feed_forward_block(layer, rows);
    delta = buffers_.delta;
  }
  if (batch.logit_rows.empty() && batch.hidden_rows.empty()) return {};
  Activations normed = with_rows(buffers_.normed, rows);
  normed.blocks = nullptr;  // only the wanted rows are quantized, in predict()
  ops::add_rms_norm(executor_, delta, buffers_.x, weights_.final_norm.data(), config_.rms_eps,
                    normed);
  const auto hidden = static_cast<size_t>(config_.hidden);
  for (size_t i = 0; i < batch.hidden_rows.size(); ++i) {
    std::memcpy(batch.hidden_out.data() + i * hidden, normed.values + batch.hidden_rows[i] * hidden,
                hidden * sizeof(float));
  }
  if (!batch.logit_rows.empty()) predict(batch.logit_rows, normed, logits.data());
  return {};
}

void Llama::attention_block(const Layer& layer, int32_t index, const ops::ForwardBatch& batch,
                            const ops::PageArenaView& pages) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const auto q_columns = static_cast<size_t>(config_.heads) * config_.head_dim;
  const auto kv_columns = static_cast<size_t>(config_.kv_heads) * config_.head_dim;
  const ops::LinearTarget qkv[] = {{&layer.q, buffers_.q, q_columns},
                                   {&layer.k, buffers_.k, kv_columns},
                                   {&layer.v, buffers_.v, kv_columns}};
  ops::linear(executor_, with_rows(buffers_.normed, rows), qkv);
  ops::rope_and_kv_write(executor_, shape_, batch.sequences, buffers_.cos_sin, buffers_.q,
                         buffers_.k, buffers_.v, index, pages);
  if (batch.layer_done) batch.layer_done(index);
  const Activations attended = with_rows(buffers_.attended, rows);
  attention_.run(executor_, buffers_.q, attended.values, index, pages);
  ops::quantize(executor_, attended);
  const ops::LinearTarget out[] = {
      {&layer.attention_out, buffers_.delta, static_cast<size_t>(config_.hidden)}};
  ops::linear(executor_, attended, out);
}

void Llama::feed_forward_block(const Layer& layer, int32_t rows) {
  const Activations ffn = with_rows(buffers_.ffn, rows);
  ops::gated_ffn(executor_, with_rows(buffers_.normed, rows), layer.gate, layer.up, buffers_.gate,
                 buffers_.up, ffn);
  const ops::LinearTarget out[] = {
      {&layer.down, buffers_.delta, static_cast<size_t>(config_.hidden)}};
  ops::linear(executor_, ffn, out);
}

void Llama::predict(std::span<const int32_t> rows, const Activations& normed, float* logits) {
  const Activations last = with_rows(buffers_.last, static_cast<int32_t>(rows.size()));
  const auto hidden = static_cast<size_t>(config_.hidden);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(last.values + i * hidden, normed.values + rows[i] * hidden, hidden * sizeof(float));
  }
  ops::quantize(executor_, last);
  const ops::LinearTarget out[] = {{&weights_.output, logits, static_cast<size_t>(config_.vocab)}};
  ops::linear(executor_, last, out);
}

Result<Layer> load_layer(TensorLoader& loader, const ModelConfig& c, int32_t index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int32_t q_rows = c.heads * c.head_dim;
  const int32_t kv_rows = c.kv_heads * c.head_dim;
  TANDEM_TRY(attention_norm, loader.vector(prefix + "attn_norm.weight", c.hidden));
  TANDEM_TRY(q, loader.matrix(prefix + "attn_q.weight", q_rows, c.hidden));
  TANDEM_TRY(k, loader.matrix(prefix + "attn_k.weight", kv_rows, c.hidden));
  TANDEM_TRY(v, loader.matrix(prefix + "attn_v.weight", kv_rows, c.hidden));
  TANDEM_TRY(attention_out, loader.matrix(prefix + "attn_output.weight", c.hidden, q_rows));
  TANDEM_TRY(ffn_norm, loader.vector(prefix + "ffn_norm.weight", c.hidden));
  TANDEM_TRY(gate, loader.matrix(prefix + "ffn_gate.weight", c.ffn, c.hidden));
  TANDEM_TRY(up, loader.matrix(prefix + "ffn_up.weight", c.ffn, c.hidden));
  TANDEM_TRY(down, loader.matrix(prefix + "ffn_down.weight", c.hidden, c.ffn));
  return Layer{.attention_norm = std::move(attention_norm),
               .q = std::move(q),
               .k = std::move(k),
               .v = std::move(v),
               .attention_out = std::move(attention_out),
               .ffn_norm = std::move(ffn_norm),
               .gate = std::move(gate),
               .up = std::move(up),
               .down = std::move(down)};
}

// theta^(-2i/dims), in float32 like the reference; a file may carry one divisor per pair (Llama 3's
// long-context scaling).
Result<std::vector<float>> load_rope_frequencies(TensorLoader& loader, const ModelConfig& c) {
  std::vector<float> divisors(c.rope_dims / 2, 1.0F);
  if (loader.has("rope_freqs.weight")) {
    TANDEM_TRY(loaded, loader.vector("rope_freqs.weight", c.rope_dims / 2));
    divisors = std::move(loaded);
  }
  std::vector<float> frequencies(c.rope_dims / 2);
  for (int32_t i = 0; i < c.rope_dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.rope_dims);
    const double power = std::pow(static_cast<double>(c.rope_theta), static_cast<double>(exponent));
    frequencies[i] = 1.0F / static_cast<float>(power) / divisors[i];
    if (!std::isfinite(frequencies[i]))
      return invalid_model("rope_freqs.weight holds a zero or a non-finite number");
  }
  return frequencies;
}

Result<Weights> load_weights(const weights::Checkpoint& checkpoint, const ModelConfig& c,
                             const ops::CpuExecutor& executor) {
  TensorLoader loader(checkpoint, executor);
  Weights w;
  TANDEM_TRY(embedding, loader.tensor("token_embd.weight", c.vocab, c.hidden));
  w.embedding = embedding;
  for (int32_t i = 0; i < c.layers; ++i) {
    TANDEM_TRY(layer, load_layer(loader, c, i));
    w.layers.push_back(std::move(layer));
  }
  TANDEM_TRY(final_norm, loader.vector("output_norm.weight", c.hidden));
  w.final_norm = std::move(final_norm);
  TANDEM_TRY(output, loader.matrix(c.tied_embedding ? "token_embd.weight" : "output.weight",
                                   c.vocab, c.hidden));
  w.output = std::move(output);
  TANDEM_TRY(frequencies, load_rope_frequencies(loader, c));
  w.rope_frequencies = std::move(frequencies);
  TANDEM_CHECK(loader.finish());
  w.bytes = loader.bytes();
  return w;
}

}  // namespace

Result<std::unique_ptr<Model>> load_llama(weights::Checkpoint checkpoint,
                                          const ModelOptions& options) {
  if (options.max_rows < 1 || options.max_rows > (1 << 16)) {
    return internal_error("max_rows must be between 1 and 65536");
  }
  TANDEM_TRY(config, read_llama_config(checkpoint));
  TANDEM_TRY(kernels, options.isa.empty() ? ops::cpu::select_kernels()
                                          : ops::cpu::select_kernels(options.isa));
  TANDEM_TRY(executor, ops::CpuExecutor::create(*kernels, options.threads, config.head_dim));
  TANDEM_TRY(loaded, load_weights(checkpoint, config, executor));
  Buffers buffers(config, options.max_rows, options.numerics == Numerics::kFast);
  if (!buffers.valid()) {
    return make_error(500, "out_of_memory",
                      "no memory for activations of " + std::to_string(options.max_rows) + " rows");
  }
  checkpoint.release_resident();
  return std::make_unique<Llama>(std::move(checkpoint), std::move(config), std::move(loaded),
                                 std::move(executor), std::move(buffers), options);
}

}  // namespace tandem::model
