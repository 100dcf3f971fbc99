// Tiny checkpoints of every architecture for tests, the same bytes on every machine: described by
// tests/golden/families/*.json (scripts/reference/families.py), whose values come from the
// generator below, and written as a Hugging Face directory or as the GGUF that the common converter
// would make of it. Header-only so that the program does not carry it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "model/tiny_llama.h"
#include "weights/gguf_writer.h"

namespace tandem::model {

struct TinyTensor {
  std::string name;
  std::vector<int64_t> shape;  // outputs first
  std::vector<float> values;

  int64_t rows() const { return shape.size() > 1 ? shape[0] : 1; }
  int64_t columns() const { return shape.back(); }
};

struct TinyCheckpoint {
  JsonValue document;
  std::vector<TinyTensor> tensors;

  const JsonValue& config() const { return *document.find("config"); }
  std::string architecture() const {
    return config().find("architectures")->items().front().as_string();
  }
};

// TinyRandom's numbers, seeded by the FNV-1a hash of the tensor's name.
inline std::vector<float> tiny_values(const std::string& name, size_t count, float scale,
                                      float offset) {
  uint64_t seed = 0xCBF29CE484222325ULL;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  return TinyRandom(seed).values(count, scale, offset);
}

inline TinyCheckpoint read_tiny_checkpoint(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto document = parse_json(text);
  TinyCheckpoint checkpoint;
  if (!document) return checkpoint;
  checkpoint.document = std::move(*document);
  for (const JsonValue& entry : checkpoint.document.find("tensors")->items()) {
    TinyTensor tensor;
    tensor.name = entry.items()[0].as_string();
    size_t count = 1;
    for (const JsonValue& size : entry.items()[1].items()) {
      tensor.shape.push_back(*size.as_integer());
      count *= static_cast<size_t>(*size.as_integer());
    }
    tensor.values =
        tiny_values(tensor.name, count, static_cast<float>(*entry.items()[2].as_double()),
                    static_cast<float>(*entry.items()[3].as_double()));
    checkpoint.tensors.push_back(std::move(tensor));
  }
  return checkpoint;
}

// The bytes of a safetensors file.
inline std::string make_safetensors(const std::vector<TinyTensor>& tensors) {
  JsonValue header = JsonValue::object();
  std::string data;
  for (const TinyTensor& tensor : tensors) {
    JsonValue entry = JsonValue::object();
    entry.set("dtype", JsonValue::string("F32"));
    JsonValue shape = JsonValue::array();
    for (const int64_t size : tensor.shape) shape.push_back(JsonValue::integer(size));
    entry.set("shape", std::move(shape));
    const auto begin = static_cast<int64_t>(data.size());
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    entry.set("data_offsets",
              JsonValue::array({JsonValue::integer(begin),
                                JsonValue::integer(static_cast<int64_t>(data.size()))}));
    header.set(tensor.name, std::move(entry));
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::string out(sizeof(size), '\0');
  std::memcpy(out.data(), &size, sizeof(size));
  return out + text + data;
}

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void write_hf_directory(const TinyCheckpoint& checkpoint,
                               const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_bytes(folder / "config.json", checkpoint.config().dump());
  write_bytes(folder / "model.safetensors", make_safetensors(checkpoint.tensors));
}

// ---- The same model as a GGUF: names, metadata and value changes of the common converter. ----

// Half-split rows (head, half, pair) as adjacent ones (head, pair, half).
inline std::vector<float> adjacent_rows(const TinyTensor& tensor, int64_t head_dim) {
  std::vector<float> out(tensor.values.size());
  const auto width = static_cast<size_t>(tensor.shape.size() > 1 ? tensor.columns() : 1);
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const int64_t inside = row % head_dim;
    const int64_t to = row - inside + 2 * (inside % (head_dim / 2)) + inside / (head_dim / 2);
    std::copy_n(tensor.values.begin() + row * static_cast<int64_t>(width), width,
                out.begin() + to * static_cast<int64_t>(width));
  }
  return out;
}

struct GgufFamily {
  std::string_view hf;
  std::string_view gguf;
  bool adjacent = false;    // reorders q and k
  bool one_plus = false;    // adds 1 to norms
  bool post_norms = false;  // post_attention_layernorm is behind the attention
};
inline constexpr GgufFamily kGgufFamilies[] = {
    {"LlamaForCausalLM", "llama", true, false, false},
    {"MistralForCausalLM", "mistral3", true, false, false},
    {"Qwen2ForCausalLM", "qwen2", false, false, false},
    {"Qwen3ForCausalLM", "qwen3", false, false, false},
    {"Gemma2ForCausalLM", "gemma2", false, true, true},
    {"Gemma3ForCausalLM", "gemma3", false, true, true},
    {"Phi3ForCausalLM", "phi3", false, false, false},
    {"SmolLM3ForCausalLM", "smollm3", true, false, false},
    {"Olmo2ForCausalLM", "olmo2", false, false, true},
};

inline std::string gguf_tensor_name(std::string name, bool post_norms) {
  const auto replace = [&name](std::string_view from, std::string_view to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  };
  replace("model.embed_tokens", "token_embd");
  replace("model.norm", "output_norm");
  replace("lm_head", "output");
  replace("model.layers.", "blk.");
  replace("input_layernorm", "attn_norm");
  replace("post_attention_layernorm", post_norms ? "post_attention_norm" : "ffn_norm");
  replace("pre_feedforward_layernorm", "ffn_norm");
  replace("post_feedforward_layernorm", "post_ffw_norm");
  replace("self_attn.q_proj", "attn_q");
  replace("self_attn.k_proj", "attn_k");
  replace("self_attn.v_proj", "attn_v");
  replace("self_attn.qkv_proj", "attn_qkv");
  replace("self_attn.o_proj", "attn_output");
  replace("self_attn.q_norm", "attn_q_norm");
  replace("self_attn.k_norm", "attn_k_norm");
  replace("mlp.gate_up_proj", "ffn_up");
  replace("mlp.gate_proj", "ffn_gate");
  replace("mlp.up_proj", "ffn_up");
  replace("mlp.down_proj", "ffn_down");
  return name;
}

class TinyGguf {
 public:
  explicit TinyGguf(const TinyCheckpoint& checkpoint,
                    weights::Format matrices = weights::Format::kF32)
      : checkpoint_(checkpoint), matrices_(matrices) {
    for (const GgufFamily& family : kGgufFamilies) {
      if (family.hf == checkpoint.architecture()) family_ = family;
    }
    prefix_ = std::string(family_.gguf) + ".";
  }

  std::vector<std::byte> make() {
    writer_.add_string("general.architecture", family_.gguf);
    write_sizes();
    write_rope();
    for (const TinyTensor& tensor : checkpoint_.tensors) write_tensor(tensor);
    return writer_.finish();
  }

 private:
  const JsonValue* fact(std::string_view key) const {
    const JsonValue* value = checkpoint_.config().find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int64_t integer(std::string_view key, int64_t fallback = 0) const {
    const JsonValue* value = fact(key);
    return value == nullptr ? fallback : *value->as_integer();
  }
  int64_t head_dim() const {
    return integer("head_dim", integer("hidden_size") / integer("num_attention_heads"));
  }
  void u32(const std::string& key, int64_t value) {
    writer_.add_u32(prefix_ + key, static_cast<uint32_t>(value));
  }
  void f32(const std::string& key, double value) {
    writer_.add_f32(prefix_ + key, static_cast<float>(value));
  }

  void write_sizes() {
    u32("block_count", integer("num_hidden_layers"));
    u32("context_length", integer("max_position_embeddings"));
    u32("embedding_length", integer("hidden_size"));
    u32("feed_forward_length", integer("intermediate_size"));
    u32("attention.head_count", integer("num_attention_heads"));
    u32("attention.head_count_kv", integer("num_key_value_heads", integer("num_attention_heads")));
    u32("attention.key_length", head_dim());
    u32("attention.value_length", head_dim());
    u32("vocab_size", integer("vocab_size"));
    const JsonValue* epsilon = fact("rms_norm_eps");
    f32("attention.layer_norm_rms_epsilon", epsilon == nullptr ? 1e-6 : *epsilon->as_double());
    if (fact("sliding_window") != nullptr)
      u32("attention.sliding_window", integer("sliding_window"));
    for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      if (fact(cap) != nullptr) f32(cap, *fact(cap)->as_double());
    }
    if (const JsonValue* scalar = fact("query_pre_attn_scalar"))
      f32("attention.scale", 1 / std::sqrt(*scalar->as_double()));
    if (family_.one_plus) write_pattern();
  }

  void write_pattern() {
    const JsonValue* types = fact("layer_types");
    std::vector<std::byte> flags;
    for (const JsonValue& type : types->items())
      flags.push_back(std::byte{type.as_string() == "sliding_attention"});
    writer_.add_bools(prefix_ + "attention.sliding_window_pattern", flags);
  }

  void write_rope() {
    const JsonValue* rope = fact("rope_parameters");
    if (rope == nullptr) return;
    if (const JsonValue* local = rope->find("sliding_attention")) {
      f32("rope.freq_base_swa", *local->find("rope_theta")->as_double());
      rope = rope->find("full_attention");
    }
    f32("rope.freq_base", *rope->find("rope_theta")->as_double());
    const auto number = [rope](std::string_view key) {
      const JsonValue* value = rope->find(key);
      return value == nullptr || !value->is_number() ? 0.0 : *value->as_double();
    };
    const double share = number("partial_rotary_factor");
    const auto dims =
        static_cast<int64_t>(static_cast<double>(head_dim()) * (share > 0 ? share : 1.0));
    u32("rope.dimension_count", dims);
    const std::string type = rope->find("rope_type")->as_string();
    if (type == "llama3") {
      write_llama3_divisors(number("factor"), number("original_max_position_embeddings"),
                            number("rope_theta"), dims);
    } else if (type == "longrope") {
      write_long_divisors(*rope);
    } else if (type != "default") {
      writer_.add_string(prefix_ + "rope.scaling.type", type);
      f32("rope.scaling.factor", number("factor"));
      if (number("original_max_position_embeddings") > 0) {
        u32("rope.scaling.original_context_length",
            static_cast<int64_t>(number("original_max_position_embeddings")));
      }
    }
  }

  // Low factor 1, high factor 4.
  void write_llama3_divisors(double factor, double original, double theta, int64_t dims) {
    std::vector<float> divisors;
    for (int64_t i = 0; i < dims; i += 2) {
      const double frequency =
          1 / std::pow(theta, static_cast<double>(i) / static_cast<double>(dims));
      const double wavelength = 2 * M_PI / frequency;
      const double share = std::clamp((original / wavelength - 1) / 3, 0.0, 1.0);
      divisors.push_back(static_cast<float>(1 / ((1 - share) / factor + share)));
    }
    writer_.add_vector("rope_freqs.weight", divisors);
  }

  void write_long_divisors(const JsonValue& rope) {
    for (const char* which : {"long", "short"}) {
      std::vector<float> divisors;
      for (const JsonValue& value : rope.find(std::string(which) + "_factor")->items())
        divisors.push_back(static_cast<float>(*value.as_double()));
      writer_.add_vector("rope_factors_" + std::string(which) + ".weight", divisors);
    }
    const double original = *rope.find("original_max_position_embeddings")->as_double();
    const double factor = static_cast<double>(integer("max_position_embeddings")) / original;
    u32("rope.scaling.original_context_length", static_cast<int64_t>(original));
    f32("rope.scaling.attn_factor", std::sqrt(1 + std::log(factor) / std::log(original)));
  }

  void write_tensor(const TinyTensor& tensor) {
    std::vector<float> values = tensor.values;
    const auto is = [&](std::string_view part) {
      return tensor.name.find(part) != std::string::npos;
    };
    if (family_.adjacent && (is(".q_proj.") || is(".k_proj.")))
      values = adjacent_rows(tensor, head_dim());
    if (family_.one_plus && tensor.name.ends_with("norm.weight")) {
      for (float& value : values) value += 1.0F;
    }
    const std::string name = gguf_tensor_name(tensor.name, family_.post_norms);
    if (tensor.shape.size() == 1) {
      writer_.add_vector(name, values);
    } else {
      writer_.add_matrix(name, matrices_, tensor.rows(), tensor.columns(), values);
    }
  }

  const TinyCheckpoint& checkpoint_;
  weights::Format matrices_;
  GgufFamily family_;
  std::string prefix_;
  weights::GgufWriter writer_;
};

}  // namespace tandem::model
