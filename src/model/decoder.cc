#include "model/decoder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/batch_check.h"
#include "model/batch_run.h"
#include "model/decoder_buffers.h"
#include "model/decoder_weights.h"
#include "model/page_groups.h"
#include "ops/cpu/dispatch.h"
#include "ops/operators.h"

namespace tandem::model {
namespace {

using ops::Activations;

std::string_view name_of(Numerics numerics) {
  return numerics == Numerics::kExact ? "exact" : numerics == Numerics::kBf16 ? "bf16" : "fast";
}

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// Consecutive rows of a batch that use the same adapter.
struct AdapterRows {
  int32_t first = 0;
  int32_t count = 0;
  int32_t adapter = -1;
};

class Decoder final : public Model {
 public:
  // `prompt_weights` are those of options.prompt_numerics, if there are any.
  Decoder(weights::Checkpoint checkpoint, DecoderSpec spec, DecoderWeights weights,
          std::optional<DecoderWeights> prompt_weights, ops::CpuExecutor executor,
          DecoderBuffers buffers, const ModelOptions& options)
      : checkpoint_(std::move(checkpoint)),
        spec_(std::move(spec)),
        weights_(std::move(weights)),
        prompt_weights_(std::move(prompt_weights)),
        executor_(std::move(executor)),
        buffers_(std::move(buffers)),
        numerics_(options.numerics),
        prompt_numerics_(options.prompt_numerics.value_or(options.numerics)),
        kv_dtype_(options.kv_dtype.value_or(default_kv_dtype(options.numerics))),
        max_rows_(options.max_rows),
        groups_(deal_page_groups(windows_of(spec_))),
        shape_{.heads = spec_.config.heads,
               .kv_heads = spec_.config.kv_heads,
               .head_dim = spec_.config.head_dim,
               .scale = spec_.attention_scale,
               .softcap = spec_.attention_softcap},
        attention_(
            options.max_rows, shape_,
            options.served_context > 0 ? options.served_context : spec_.config.context_length) {}

  const ModelConfig& config() const override { return spec_.config; }
  void bind_caller() override { executor_.threads().bind_caller(); }
  int32_t max_rows() const override { return max_rows_; }
  std::vector<PageGroup> page_groups() const override { return groups_.groups; }
  const ops::KvScales& kv_scales() const override { return weights_.kv_scales; }
  std::span<const AdapterInfo> adapters() const override { return adapter_infos_; }
  ModelMemory memory() const override {
    size_t weights = weights_.bytes + (prompt_weights_ ? prompt_weights_->bytes : 0);
    for (const Adapter& adapter : adapters_) weights += adapter.bytes;
    return {.weights = weights,
            .activations = buffers_.bytes() + executor_.scratch_bytes() +
                           attention_.partial_bytes() + low_rank_scratch_.size() * sizeof(float)};
  }
  ops::PageLayout page_layout(int32_t block_tokens) const override {
    return page_layout_of(spec_.config, groups_, kv_dtype_, block_tokens);
  }
  std::string numeric_path() const override {
    const bool pairs = weights_.forms.bf16 || weights_.output_forms.bf16 ||
                       (prompt_weights_ && prompt_weights_->forms.bf16);
    std::string path = std::string("cpu-") + executor_.kernels().name + "-";
    if (prompt_weights_) path.append(name_of(prompt_numerics_)).append("+");
    return path.append(name_of(numerics_)) + "-" + std::to_string(ops::cpu::kKernelVersion) +
           (pairs ? "-pairs" : "") + (spec_.long_rope ? "-long" : "");
  }

  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                 std::span<float> logits) override;
  Result<int32_t> load_adapter(const std::string& name, const std::string& path) override;

 private:
  // A batch whose sequences are all a prompt's or none, with `weights`.
  void run(const ops::ForwardBatch& batch, const DecoderWeights& weights,
           const ops::PageArenaView& pages, float* logits);
  // The same for each run of such sequences of a batch.
  void run_apart(const ops::ForwardBatch& batch, const ops::PageArenaView& pages, float* logits);
  static Activations with_forms(Activations a, int32_t rows, const InputForms& forms);
  Activations with_rows(const Activations& a, int32_t rows) const {
    return with_forms(a, rows, used_->forms);
  }
  void prepare(const ops::ForwardBatch& batch, const ops::PageLayout& layout);
  void attention_block(int32_t layer, const ops::ForwardBatch& batch,
                       const ops::PageArenaView& pages);
  void feed_forward_block(int32_t layer, int32_t rows);
  void finish(const ops::ForwardBatch& batch, const ops::Residual& residual, float* logits);
  void predict(std::span<const int32_t> rows, const Activations& normed, float* logits);
  // Adds what the batch's adapters add to one projection of `x`.
  void adapt(int32_t layer, Projection projection, const Activations& x, float* out,
             int32_t columns);

  weights::Checkpoint checkpoint_;
  DecoderSpec spec_;
  DecoderWeights weights_;
  std::optional<DecoderWeights> prompt_weights_;
  const DecoderWeights* used_ = nullptr;  // in this pass
  BatchRun run_;
  ops::CpuExecutor executor_;
  DecoderBuffers buffers_;
  Numerics numerics_;
  Numerics prompt_numerics_;
  ops::KvDtype kv_dtype_;
  int32_t max_rows_;
  PageGroups groups_;
  ops::AttentionShape shape_;
  ops::AttentionPlan attention_;
  std::vector<Adapter> adapters_;
  std::vector<AdapterInfo> adapter_infos_;
  std::vector<AdapterRows> adapter_rows_;  // of the current batch
  std::vector<float> low_rank_scratch_;
};

Status Decoder::forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                        std::span<float> logits) {
  TANDEM_CHECK(check_batch(batch, pages,
                           {.config = spec_.config,
                            .layout = page_layout(pages.layout.block_tokens),
                            .groups = groups_.groups,
                            .max_rows = max_rows_,
                            .adapters = static_cast<int32_t>(adapters_.size())},
                           logits.size()));
  if (batch.tokens.empty()) return {};
  if (prompt_weights_) {
    run_apart(batch, pages, logits.data());
  } else {
    run(batch, weights_, pages, logits.data());
  }
  return {};
}

void Decoder::run_apart(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                        float* logits) {
  for (size_t begin = 0; begin < batch.sequences.size();) {
    const bool prompt = batch.sequences[begin].prompt;
    size_t end = begin + 1;
    while (end < batch.sequences.size() && batch.sequences[end].prompt == prompt) ++end;
    const ops::ForwardBatch part =
        run_.take(batch, begin, end, static_cast<size_t>(spec_.config.hidden));
    run(part, prompt ? *prompt_weights_ : weights_, pages, logits);
    logits += part.logit_rows.size() * static_cast<size_t>(spec_.config.vocab);
    begin = end;
  }
}

Activations Decoder::with_forms(Activations a, int32_t rows, const InputForms& forms) {
  a.rows = rows;
  if (!forms.int8) a.blocks = nullptr;
  if (!forms.bf16) a.bf16 = nullptr;
  return a;
}

void Decoder::run(const ops::ForwardBatch& batch, const DecoderWeights& weights,
                  const ops::PageArenaView& pages, float* logits) {
  used_ = &weights;
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  prepare(batch, pages.layout);
  ops::embed(executor_, *weights.embedding, spec_.embedding_scale, batch.tokens, buffers_.x);
  Activations normed = with_rows(buffers_.normed, rows);
  normed.keep_values = weights.forms.f32 || !adapter_rows_.empty();
  const float epsilon = spec_.config.rms_eps;
  ops::Residual residual;
  for (int32_t i = 0; i < spec_.config.layers; ++i) {
    const DecoderLayerWeights& w = weights.layers[i];
    ops::add_rms_norm(executor_, residual, buffers_.x, data_or_null(w.attention_norm), epsilon,
                      normed);
    attention_block(i, batch, pages);
    residual = {buffers_.delta, data_or_null(w.attention_post_norm)};
    ops::add_rms_norm(executor_, residual, buffers_.x, data_or_null(w.ffn_norm), epsilon, normed);
    feed_forward_block(i, rows);
    residual = {buffers_.delta, data_or_null(w.ffn_post_norm)};
  }
  finish(batch, residual, logits);
}

void Decoder::prepare(const ops::ForwardBatch& batch, const ops::PageLayout& layout) {
  adapter_rows_.clear();
  for (const ops::SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.row_count; ++i)
      buffers_.positions[sequence.first_row + i] = sequence.first_position + i;
    if (sequence.adapter < 0) continue;
    AdapterRows* last = adapter_rows_.empty() ? nullptr : &adapter_rows_.back();
    if (last != nullptr && last->adapter == sequence.adapter &&
        last->first + last->count == sequence.first_row) {
      last->count += sequence.row_count;
    } else {
      adapter_rows_.push_back({sequence.first_row, sequence.row_count, sequence.adapter});
    }
  }
  for (size_t i = 0; i < spec_.ropes.size(); ++i) {
    ops::rope_angles(executor_, std::span(buffers_.positions).first(batch.tokens.size()),
                     spec_.ropes[i], buffers_.cos_sin[i]);
  }
  attention_.plan(batch.sequences, layout, executor_);
}

void Decoder::adapt(int32_t layer, Projection projection, const Activations& x, float* out,
                    int32_t columns) {
  for (const AdapterRows& rows : adapter_rows_) {
    const auto& low_rank = adapters_[rows.adapter].layers[layer][static_cast<size_t>(projection)];
    if (!low_rank) continue;
    ops::add_low_rank(executor_, x, rows.first, rows.count, *low_rank, out,
                      static_cast<size_t>(columns), low_rank_scratch_.data());
  }
}

void Decoder::attention_block(int32_t layer, const ops::ForwardBatch& batch,
                              const ops::PageArenaView& pages) {
  const DecoderLayerWeights& w = used_->layers[layer];
  const DecoderLayer& facts = spec_.layers[layer];
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const int32_t q_columns = shape_.q_columns();
  const int32_t kv_columns = shape_.kv_columns();
  const Activations normed = with_rows(buffers_.normed, rows);
  const ops::LinearTarget qkv[] = {{&w.q, buffers_.q, static_cast<size_t>(q_columns)},
                                   {&w.k, buffers_.k, static_cast<size_t>(kv_columns)},
                                   {&w.v, buffers_.v, static_cast<size_t>(kv_columns)}};
  ops::linear(executor_, normed, qkv);
  adapt(layer, Projection::kQ, normed, buffers_.q, q_columns);
  adapt(layer, Projection::kK, normed, buffers_.k, kv_columns);
  adapt(layer, Projection::kV, normed, buffers_.v, kv_columns);
  const ops::QkvTransform transform = {
      .q_bias = data_or_null(w.q_bias),
      .k_bias = data_or_null(w.k_bias),
      .v_bias = data_or_null(w.v_bias),
      .q_norm = data_or_null(w.q_norm),
      .k_norm = data_or_null(w.k_norm),
      .norm_whole = spec_.qk_norm == QkNorm::kProjection,
      .epsilon = spec_.config.rms_eps,
      .rope = facts.rope < 0 ? nullptr : &spec_.ropes[facts.rope],
      .cos_sin = facts.rope < 0 ? nullptr : buffers_.cos_sin[facts.rope]};
  const ops::AttentionLayer layer_view = {.place = groups_.places[layer],
                                          .window = facts.window,
                                          .scales = weights_.kv_scales.of(layer)};
  ops::finish_qkv(executor_, shape_, transform, batch.sequences, buffers_.q, buffers_.k, buffers_.v,
                  layer_view, pages);
  if (batch.layer_done) batch.layer_done(layer);
  const Activations attended = with_rows(buffers_.attended, rows);
  attention_.run(executor_, buffers_.q, attended.values, layer_view, pages);
  ops::quantize(executor_, attended);
  const int32_t hidden = spec_.config.hidden;
  const ops::LinearTarget out[] = {{&w.attention_out, buffers_.delta, static_cast<size_t>(hidden)}};
  ops::linear(executor_, attended, out);
  adapt(layer, Projection::kAttentionOut, attended, buffers_.delta, hidden);
  if (!w.attention_out_bias.empty())
    ops::add_bias(executor_, w.attention_out_bias.data(), rows, hidden, buffers_.delta);
}

void Decoder::feed_forward_block(int32_t layer, int32_t rows) {
  const DecoderLayerWeights& w = used_->layers[layer];
  const Activations normed = with_rows(buffers_.normed, rows);
  Activations ffn = with_rows(buffers_.ffn, rows);
  const int32_t columns = spec_.config.ffn;
  const int32_t hidden = spec_.config.hidden;
  if (adapter_rows_.empty() && !spec_.ffn_bias) {
    ffn.keep_values = used_->forms.f32;
    ops::gated_ffn(executor_, normed, w.gate, w.up, spec_.activation, buffers_.gate, buffers_.up,
                   ffn);
  } else {
    const ops::LinearTarget both[] = {{&w.gate, buffers_.gate, static_cast<size_t>(columns)},
                                      {&w.up, buffers_.up, static_cast<size_t>(columns)}};
    ops::linear(executor_, normed, both);
    adapt(layer, Projection::kGate, normed, buffers_.gate, columns);
    adapt(layer, Projection::kUp, normed, buffers_.up, columns);
    if (spec_.ffn_bias) {
      ops::add_bias(executor_, w.gate_bias.data(), rows, columns, buffers_.gate);
      ops::add_bias(executor_, w.up_bias.data(), rows, columns, buffers_.up);
    }
    ops::gate(executor_, buffers_.gate, buffers_.up, spec_.activation, ffn);
  }
  const ops::LinearTarget out[] = {{&w.down, buffers_.delta, static_cast<size_t>(hidden)}};
  ops::linear(executor_, ffn, out);
  adapt(layer, Projection::kDown, ffn, buffers_.delta, hidden);
  if (spec_.ffn_bias) ops::add_bias(executor_, w.down_bias.data(), rows, hidden, buffers_.delta);
}

void Decoder::finish(const ops::ForwardBatch& batch, const ops::Residual& residual, float* logits) {
  if (batch.logit_rows.empty() && batch.hidden_rows.empty()) return;
  Activations normed = with_rows(buffers_.normed, static_cast<int32_t>(batch.tokens.size()));
  normed.blocks = nullptr;
  normed.bf16 = nullptr;  // only the wanted rows are quantized, in predict()
  ops::add_rms_norm(executor_, residual, buffers_.x, used_->final_norm.data(), spec_.config.rms_eps,
                    normed);
  const auto hidden = static_cast<size_t>(spec_.config.hidden);
  for (size_t i = 0; i < batch.hidden_rows.size(); ++i) {
    std::memcpy(batch.hidden_out.data() + i * hidden, normed.values + batch.hidden_rows[i] * hidden,
                hidden * sizeof(float));
  }
  if (!batch.logit_rows.empty()) predict(batch.logit_rows, normed, logits);
}

void Decoder::predict(std::span<const int32_t> rows, const Activations& normed, float* logits) {
  const auto count = static_cast<int32_t>(rows.size());
  const Activations last = with_forms(buffers_.last, count, used_->output_forms);
  const auto hidden = static_cast<size_t>(spec_.config.hidden);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(last.values + i * hidden, normed.values + rows[i] * hidden, hidden * sizeof(float));
  }
  ops::quantize(executor_, last);
  const int32_t vocab = spec_.config.vocab;
  const ops::LinearTarget out[] = {{&used_->output, logits, static_cast<size_t>(vocab)}};
  ops::linear(executor_, last, out);
  if (spec_.final_softcap > 0) ops::soft_cap(executor_, spec_.final_softcap, count, vocab, logits);
}

Result<int32_t> Decoder::load_adapter(const std::string& name, const std::string& path) {
  const auto has_name = [&](const AdapterInfo& info) { return info.name == name; };
  if (std::ranges::any_of(adapter_infos_, has_name))
    return make_error(400, "adapter_exists", "there is an adapter of that name already");
  TANDEM_TRY(files, weights::Checkpoint::open(path));
  TANDEM_TRY(adapter, read_adapter(files, spec_, checkpoint_.is_gguf(), executor_));
  const ModelConfig& c = spec_.config;
  const int32_t widest =
      std::max({c.hidden, c.ffn, shape_.q_columns(), shape_.kv_columns()}) + adapter.rank;
  low_rank_scratch_.resize(std::max(low_rank_scratch_.size(),
                                    static_cast<size_t>(max_rows_) * static_cast<size_t>(widest)));
  adapter_infos_.push_back(
      {.name = name, .rank = adapter.rank, .bytes = adapter.bytes, .digest = files.digest()});
  adapters_.push_back(std::move(adapter));
  return static_cast<int32_t>(adapters_.size() - 1);
}

}  // namespace

Result<std::unique_ptr<Model>> load_decoder(weights::Checkpoint checkpoint, DecoderSpec spec,
                                            const ModelOptions& options) {
  if (options.max_rows < 1 || options.max_rows > (1 << 16))
    return internal_error("max_rows must be between 1 and 65536");
  TANDEM_TRY(kernels, options.isa.empty() ? ops::cpu::select_kernels()
                                          : ops::cpu::select_kernels(options.isa));
  const bool bf16 =
      options.numerics == Numerics::kBf16 || options.prompt_numerics == Numerics::kBf16;
  if (bf16 && kernels->linear_bf16 == nullptr) {
    return make_error(400, "unsupported_numerics",
                      "numerics bf16 needs fast products of BF16 (AMX, or AVX-512 on AMD), which "
                      "this machine or TANDEM_ISA does not have; use fast");
  }
  TANDEM_TRY(executor, ops::CpuExecutor::create(*kernels, options.threads, spec.config.head_dim));
  TANDEM_TRY(loaded, load_decoder_weights(checkpoint, spec, executor, options.numerics));
  std::optional<DecoderWeights> prompt_weights;
  InputForms forms = loaded.forms | loaded.output_forms;
  if (options.prompt_numerics && *options.prompt_numerics != options.numerics) {
    TANDEM_TRY(second, load_decoder_weights(checkpoint, spec, executor, *options.prompt_numerics));
    forms = forms | second.forms | second.output_forms;
    prompt_weights = std::move(second);
  }
  DecoderBuffers buffers(spec, options.max_rows, forms);
  if (!buffers.valid()) {
    return make_error(500, "out_of_memory",
                      "no memory for activations of " + std::to_string(options.max_rows) + " rows");
  }
  checkpoint.release_resident();
  return std::make_unique<Decoder>(std::move(checkpoint), std::move(spec), std::move(loaded),
                                   std::move(prompt_weights), std::move(executor),
                                   std::move(buffers), options);
}

}  // namespace tandem::model
