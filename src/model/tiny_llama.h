// Small Llama models with random weights, the same bytes on every machine. For tests: the real
// model is 98 MB, these are kilobytes and cover shapes and formats that it does not. Header-only so
// that the program does not carry it.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "weights/gguf_writer.h"

namespace tandem::model {

struct TinyLlama {
  std::string name = "tiny";
  int32_t layers = 2;
  int32_t hidden = 64;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t ffn = 96;
  int32_t vocab = 300;
  int32_t context = 2048;
  float rope_theta = 10000.0F;
  bool tied = false;
  uint32_t seed = 1;
  weights::Format embedding = weights::Format::kF32;
  weights::Format output = weights::Format::kF32;
  // Formats of a layer's seven matrices, dealt out in turn over all layers.
  std::vector<weights::Format> matrices = {weights::Format::kF32};
};

// The three models of the golden tests: together every format, MHA, GQA and MQA, a vocabulary and
// head sizes that are no multiples of 16, tied and untied outputs.
inline std::vector<TinyLlama> golden_tiny_llamas() {
  using weights::Format;
  return {
      {.name = "tiny-plain",
       .layers = 3,
       .hidden = 160,
       .heads = 4,
       .kv_heads = 4,
       .ffn = 200,
       .vocab = 331,
       .seed = 11,
       .embedding = Format::kF16,
       .output = Format::kBF16,
       .matrices = {Format::kF32, Format::kF16, Format::kBF16}},
      {.name = "tiny-quant",
       .layers = 3,
       .hidden = 192,
       .heads = 8,
       .kv_heads = 2,
       .ffn = 320,
       .vocab = 500,
       .rope_theta = 100000.0F,
       .tied = true,
       .seed = 12,
       .embedding = Format::kQ80,
       .matrices = {Format::kQ41, Format::kQ80, Format::kQ40, Format::kQ41}},
      {.name = "tiny-q6k",
       .layers = 2,
       .hidden = 256,
       .heads = 4,
       .kv_heads = 1,
       .ffn = 512,
       .vocab = 260,
       .seed = 13,
       .embedding = Format::kQ6K,
       .output = Format::kQ6K,
       .matrices = {Format::kQ6K, Format::kQ6K, Format::kQ40}},
  };
}

// Uniform values in [-scale, scale) from a 64-bit mixing function of a counter: no library's
// generator, so the bytes never change.
class TinyRandom {
 public:
  explicit TinyRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  float uniform(float scale) {
    return (static_cast<float>(next() >> 40) * 0x1p-23F - 1.0F) * scale;
  }
  std::vector<float> values(size_t count, float scale, float offset = 0) {
    std::vector<float> out(count);
    for (float& value : out) value = offset + uniform(scale);
    return out;
  }

 private:
  uint64_t state_;
};

// Adds the hyperparameters and tensors of `spec` to `writer`; tokenizer metadata is the caller's.
inline void write_tiny_llama(const TinyLlama& spec, weights::GgufWriter& writer) {
  writer.add_string("general.architecture", "llama");
  writer.add_string("general.name", spec.name);
  writer.add_u32("llama.block_count", static_cast<uint32_t>(spec.layers));
  writer.add_u32("llama.context_length", static_cast<uint32_t>(spec.context));
  writer.add_u32("llama.embedding_length", static_cast<uint32_t>(spec.hidden));
  writer.add_u32("llama.feed_forward_length", static_cast<uint32_t>(spec.ffn));
  writer.add_u32("llama.attention.head_count", static_cast<uint32_t>(spec.heads));
  writer.add_u32("llama.attention.head_count_kv", static_cast<uint32_t>(spec.kv_heads));
  writer.add_u32("llama.rope.dimension_count", static_cast<uint32_t>(spec.hidden / spec.heads));
  writer.add_u32("llama.vocab_size", static_cast<uint32_t>(spec.vocab));
  writer.add_f32("llama.rope.freq_base", spec.rope_theta);
  writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);

  TinyRandom random(spec.seed);
  size_t turn = 0;
  const auto matrix = [&](const std::string& name, weights::Format format, int32_t rows,
                          int32_t columns, float gain) {
    const float scale = gain * std::sqrt(3.0F / static_cast<float>(columns));
    const auto values = random.values(static_cast<size_t>(rows) * columns, scale);
    writer.add_matrix(name, format, rows, columns, values);
  };
  const auto layer_matrix = [&](const std::string& name, int32_t rows, int32_t columns,
                                float gain) {
    matrix(name, spec.matrices[turn++ % spec.matrices.size()], rows, columns, gain);
  };
  const int32_t kv_rows = spec.hidden / spec.heads * spec.kv_heads;
  matrix("token_embd.weight", spec.embedding, spec.vocab, spec.hidden, 4.0F);
  for (int32_t i = 0; i < spec.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    writer.add_vector(prefix + "attn_norm.weight", random.values(spec.hidden, 0.3F, 1.0F));
    layer_matrix(prefix + "attn_q.weight", spec.hidden, spec.hidden, 2.0F);
    layer_matrix(prefix + "attn_k.weight", kv_rows, spec.hidden, 2.0F);
    layer_matrix(prefix + "attn_v.weight", kv_rows, spec.hidden, 1.0F);
    layer_matrix(prefix + "attn_output.weight", spec.hidden, spec.hidden, 1.0F);
    writer.add_vector(prefix + "ffn_norm.weight", random.values(spec.hidden, 0.3F, 1.0F));
    layer_matrix(prefix + "ffn_gate.weight", spec.ffn, spec.hidden, 1.5F);
    layer_matrix(prefix + "ffn_up.weight", spec.ffn, spec.hidden, 1.0F);
    layer_matrix(prefix + "ffn_down.weight", spec.hidden, spec.ffn, 1.0F);
  }
  writer.add_vector("output_norm.weight", random.values(spec.hidden, 0.3F, 1.0F));
  if (!spec.tied) matrix("output.weight", spec.output, spec.vocab, spec.hidden, 3.0F);
}

inline std::vector<std::byte> make_tiny_llama(const TinyLlama& spec) {
  weights::GgufWriter writer;
  write_tiny_llama(spec, writer);
  return writer.finish();
}

}  // namespace tandem::model
