#include "model/decoder_spec.h"

#include <cmath>

namespace tandem::model {
namespace {

struct Keys {
  std::string_view layers, hidden, heads, kv_heads, head_dim, ffn, context, epsilon;
};
constexpr Keys kGgufKeys = {"block_count",          "embedding_length",
                            "attention.head_count", "attention.head_count_kv",
                            "attention.key_length", "feed_forward_length",
                            "context_length",       "attention.layer_norm_rms_epsilon"};
constexpr Keys kHfKeys = {"num_hidden_layers",       "hidden_size", "num_attention_heads",
                          "num_key_value_heads",     "head_dim",    "intermediate_size",
                          "max_position_embeddings", "rms_norm_eps"};

// Keys of config.json that say nothing about inference on text, or repeat what the tensors say.
// (quantization_config: registry.cc refuses those that are about weights.)
constexpr std::string_view kIgnoredHfKeys[] = {"architectures",
                                               "quantization_config",
                                               "model_type",
                                               "torch_dtype",
                                               "dtype",
                                               "transformers_version",
                                               "use_cache",
                                               "initializer_range",
                                               "attention_dropout",
                                               "bos_token_id",
                                               "eos_token_id",
                                               "pad_token_id",
                                               "pretraining_tp",
                                               "resid_pdrop",
                                               "embd_pdrop",
                                               "hidden_dropout",
                                               "vocab_size",
                                               "cache_implementation",
                                               "auto_map",
                                               "hidden_dropout_prob",
                                               "id2label",
                                               "label2id",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "return_dict",
                                               "unsloth_fixed",
                                               "unsloth_version",
                                               "is_encoder_decoder",
                                               "chunk_size_feed_forward",
                                               "problem_type",
                                               "tokenizer_class",
                                               "sep_token_id",
                                               "is_llama_config",
                                               "transformers.js_config",
                                               "attn_implementation",
                                               "use_return_dict",
                                               "do_sample",
                                               "temperature",
                                               "top_p",
                                               "top_k",
                                               "typical_p",
                                               "repetition_penalty",
                                               "length_penalty",
                                               "num_beams",
                                               "num_beam_groups",
                                               "num_return_sequences",
                                               "max_length",
                                               "max_new_tokens"};
constexpr std::string_view kIgnoredGgufKeys[] = {"vocab_size", "tensor_data_layout",
                                                 "rope.scaling.finetuned", "pooling_type"};

TensorNames hf_names(const weights::Checkpoint& checkpoint) {
  // A model with a vision tower keeps its text part under a name of its own.
  std::string root = "model.";
  std::string output = "lm_head";
  for (const std::string_view prefix : {"language_model.model.", "model.language_model."}) {
    if (checkpoint.find_tensor(std::string(prefix) + "embed_tokens.weight") == nullptr) continue;
    root = prefix;
    if (prefix.starts_with("language_model.")) output = "language_model.lm_head";
  }
  return {.embedding = root + "embed_tokens",
          .final_norm = root + "norm",
          .output = output,
          .layer_prefix = root + "layers.",
          .attention_norm = "input_layernorm",
          .q = "self_attn.q_proj",
          .k = "self_attn.k_proj",
          .v = "self_attn.v_proj",
          .qkv = "self_attn.qkv_proj",
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .attention_out = "self_attn.o_proj",
          .attention_post_norm = "post_attention_layernorm",
          .ffn_norm = "post_attention_layernorm",
          .gate = "mlp.gate_proj",
          .up = "mlp.up_proj",
          .gate_up = "mlp.gate_up_proj",
          .down = "mlp.down_proj",
          .ffn_post_norm = "post_feedforward_layernorm"};
}

Status read_sizes(const ModelSource& source, const CommonDefaults& defaults, ModelConfig& c) {
  const Keys& keys = source.is_gguf() ? kGgufKeys : kHfKeys;
  const bool hf = !source.is_gguf();
  const ConfigReader& config = source.config;
  TANDEM_TRY(layers, config.integer(keys.layers, 1, 1024));
  TANDEM_TRY(hidden, config.integer(keys.hidden, 1, 1 << 17));
  TANDEM_TRY(heads, config.integer(keys.heads, 1, 4096, hf ? defaults.heads : std::nullopt));
  TANDEM_TRY(kv_heads, config.integer(keys.kv_heads, 1, 4096,
                                      hf && defaults.kv_heads ? *defaults.kv_heads : heads));
  TANDEM_TRY(ffn, config.integer(keys.ffn, 1, 1 << 20));
  TANDEM_TRY(context,
             config.integer(keys.context, 1, 1 << 24, hf ? defaults.context : std::nullopt));
  const bool own_head_dim = config.has(keys.head_dim) || (hf && defaults.head_dim);
  TANDEM_TRY(head_dim,
             config.integer(keys.head_dim, 1, 1024,
                            hf && defaults.head_dim ? *defaults.head_dim : hidden / heads));
  TANDEM_TRY(epsilon, config.positive_real(keys.epsilon, hf ? defaults.epsilon : std::nullopt));
  if (head_dim < 2 || (!own_head_dim && hidden % heads != 0)) {
    return invalid_model(config.name(keys.hidden) + " must be a multiple of " +
                         config.name(keys.heads));
  }
  if (heads % kv_heads != 0) {
    return invalid_model(config.name(keys.heads) + " must be a multiple of " +
                         config.name(keys.kv_heads));
  }
  if (source.is_gguf()) {
    TANDEM_TRY(value_dim, config.integer("attention.value_length", 1, 1024, head_dim));
    if (value_dim != head_dim)
      return unsupported_model("keys and values of different lengths are not supported");
  }
  c.layers = layers;
  c.hidden = hidden;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.ffn = ffn;
  c.context_length = context;
  c.rms_eps = static_cast<float>(epsilon);
  return {};
}

// The vocabulary is what the embedding has rows for; the output is tied when the configuration says
// so or when there is none.
Status read_vocabulary(const ModelSource& source, DecoderSpec& spec) {
  const weights::Tensor* embedding =
      source.checkpoint.find_tensor(spec.names.embedding + ".weight");
  if (embedding == nullptr || embedding->dimension_count != 2)
    return invalid_model("the model has no token embedding matrix");
  if (embedding->rows() > (1 << 24)) return invalid_model("the vocabulary is too large");
  spec.config.vocab = static_cast<int32_t>(embedding->rows());
  const bool has_output = source.checkpoint.find_tensor(spec.names.output + ".weight") != nullptr;
  TANDEM_TRY(tied, source.config.boolean("tie_word_embeddings", !has_output));
  spec.config.tied_embedding = tied;
  if (tied && has_output) spec.other_tensors.push_back(spec.names.output + ".weight");
  return {};
}

Status read_gguf_scaling(const ModelSource& source, DecoderSpec& spec, RopeFacts& facts) {
  const ConfigReader& config = source.config;
  TANDEM_TRY(type, config.string("rope.scaling.type", "none"));
  TANDEM_TRY(factor, config.positive_real("rope.scaling.factor", 1.0));
  TANDEM_TRY(original, config.positive_real("rope.scaling.original_context_length",
                                            static_cast<double>(spec.config.context_length)));
  facts.factor = factor;
  facts.original_context = original;
  if (config.has("rope.scaling.attn_factor")) {
    TANDEM_TRY(amplitude, config.positive_real("rope.scaling.attn_factor"));
    facts.amplitude = amplitude;
  }
  if (type == "linear") {
    facts.rule = RopeFacts::Rule::kLinear;
  } else if (type == "yarn") {
    facts.rule = RopeFacts::Rule::kYarn;
    TANDEM_TRY(fast, config.positive_real("rope.scaling.yarn_beta_fast", facts.beta_fast));
    TANDEM_TRY(slow, config.positive_real("rope.scaling.yarn_beta_slow", facts.beta_slow));
    facts.beta_fast = fast;
    facts.beta_slow = slow;
    // The file's factor multiplies the rule's own amplitude.
    if (facts.amplitude > 0 && factor > 1) facts.amplitude *= 0.1 * std::log(factor) + 1;
  } else if (type == "longrope") {
    facts.rule = RopeFacts::Rule::kLong;
  } else if (type != "none") {
    return unsupported_model(config.name("rope.scaling.type") + " \"" + type.substr(0, 32) +
                             "\" is not supported");
  }
  return {};
}

// Divisors of each pair that a GGUF carries as tensors: Llama 3's, or the two sets of longrope.
Status read_gguf_divisors(const ModelSource& source, DecoderSpec& spec, RopeFacts& facts) {
  const bool beyond =
      (source.served_context > 0 ? source.served_context : spec.config.context_length) >
      facts.original_context;
  for (const std::string_view name :
       {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}) {
    const weights::Tensor* tensor = source.checkpoint.find_tensor(name);
    if (tensor == nullptr) continue;
    spec.other_tensors.emplace_back(name);
    if ((name == "rope_factors_long.weight" && !beyond) ||
        (name == "rope_factors_short.weight" && beyond)) {
      continue;
    }
    if (tensor->rows() != 1 || tensor->columns() != facts.dims / 2)
      return invalid_model("tensor " + std::string(name) + " must have one value for each pair");
    std::vector<float> values(static_cast<size_t>(tensor->columns()));
    weights::dequantize_row(tensor->format, tensor->bytes, values);
    facts.divisors.assign(values.begin(), values.end());
    if (name == "rope_factors_long.weight") facts.long_divisors = true;
  }
  return {};
}

}  // namespace

std::vector<int32_t> windows_of(const DecoderSpec& spec) {
  std::vector<int32_t> windows;
  for (const DecoderLayer& layer : spec.layers) windows.push_back(layer.window);
  return windows;
}

Result<RopeFacts> read_rope_facts(const ModelSource& source, DecoderSpec& spec,
                                  double default_theta) {
  const ConfigReader& config = source.config;
  const ModelConfig& c = spec.config;
  RopeFacts facts;
  facts.dims = c.head_dim;
  if (source.is_gguf()) {
    TANDEM_TRY(theta, config.positive_real("rope.freq_base", default_theta));
    TANDEM_TRY(dims, config.integer("rope.dimension_count", 2, 1024, c.head_dim));
    facts.theta = theta;
    facts.dims = dims;
    TANDEM_CHECK(read_gguf_scaling(source, spec, facts));
    TANDEM_CHECK(read_gguf_divisors(source, spec, facts));
  } else {
    TANDEM_TRY(theta, config.positive_real("rope_theta", default_theta));
    facts.theta = theta;
    TANDEM_TRY(original, config.positive_real("original_max_position_embeddings", 1.0));
    facts.original_context = original > 1 ? original : 0;
    TANDEM_TRY(share, config.positive_real("partial_rotary_factor", 1.0));
    double rotated = share;
    for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
      TANDEM_TRY(scaling, config.child(key));
      if (!scaling) continue;
      TANDEM_TRY(own_share, scaling->positive_real("partial_rotary_factor", rotated));
      rotated = own_share;
      TANDEM_CHECK(read_rope_scaling(
          *scaling, c.context_length,
          source.served_context > 0 ? source.served_context : c.context_length, facts));
    }
    facts.dims = static_cast<int32_t>(c.head_dim * std::min(rotated, 1.0));
  }
  if (facts.dims < 2 || facts.dims % 2 != 0 || facts.dims > c.head_dim)
    return invalid_model("the rotated dimensions must be even and at most the head's length");
  return facts;
}

Result<DecoderSpec> read_common(const ModelSource& source, const CommonDefaults& hf_defaults) {
  DecoderSpec spec;
  const ConfigReader& config = source.config;
  if (source.is_gguf()) {
    for (const std::string_view key : kIgnoredGgufKeys) config.ignore(key);
    TANDEM_TRY(experts, config.integer("expert_count", 0, 1 << 20, 0));
    if (experts > 0) return unsupported_model("mixture-of-experts models are not supported");
  } else {
    for (const std::string_view key : kIgnoredHfKeys) config.ignore(key);
    spec.names = hf_names(source.checkpoint);
  }
  TANDEM_CHECK(read_sizes(source, hf_defaults, spec.config));
  TANDEM_CHECK(read_vocabulary(source, spec));
  spec.attention_scale = 1.0F / std::sqrt(static_cast<float>(spec.config.head_dim));
  spec.layers.resize(static_cast<size_t>(spec.config.layers));
  if (hf_defaults.rope) {
    TANDEM_TRY(facts, read_rope_facts(source, spec, hf_defaults.theta));
    TANDEM_TRY(rope, make_rope(facts, ops::RopePairing::kHalves));
    spec.config.rope_theta = static_cast<float>(facts.theta);
    spec.config.rope_dims = facts.dims;
    spec.long_rope = facts.long_divisors;
    spec.ropes.push_back(std::move(rope));
  }
  return spec;
}

Result<bool> apply_layer_types(const ModelSource& source, int32_t window, DecoderSpec& spec) {
  TANDEM_TRY(types, source.config.per_layer("layer_types", spec.config.layers));
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string& type = types[i].as_string();
    if (type == "sliding_attention") {
      if (window <= 0) return invalid_model("the configuration has sliding layers but no window");
      spec.layers[i].window = window;
    } else if (type != "full_attention") {
      return unsupported_model("layer type \"" + type.substr(0, 32) + "\" is not supported");
    }
  }
  return !types.empty();
}

Status expect_activation(const ModelSource& source, std::string_view key,
                         std::string_view expected) {
  if (source.is_gguf()) return {};
  TANDEM_TRY(activation, source.config.string(key, expected));
  if (activation == expected) return {};
  return unsupported_model(source.config.name(key) + " \"" + activation + "\" is not supported");
}

}  // namespace tandem::model
