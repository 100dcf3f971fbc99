#include "model/registry.h"

#include <algorithm>

#include "model/decoder.h"
#include "model/families.h"
#include "model/page_groups.h"

namespace tandem::model {
namespace {

struct Family {
  std::string_view gguf;          // general.architecture; empty: none
  std::string_view architecture;  // config.json's; empty: none
  Result<DecoderSpec> (*read)(const ModelSource& source);
};

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", read_llama},
    {"mistral", "MistralForCausalLM", read_mistral},
    {"mistral3", "", read_mistral},
    {"qwen2", "Qwen2ForCausalLM", read_qwen2},
    {"qwen3", "Qwen3ForCausalLM", read_qwen3},
    {"gemma2", "Gemma2ForCausalLM", read_gemma2},
    {"gemma3", "Gemma3ForCausalLM", read_gemma3},
    {"", "Gemma3ForConditionalGeneration", read_gemma3},  // its text part
    {"phi3", "Phi3ForCausalLM", read_phi3},
    {"smollm3", "SmolLM3ForCausalLM", read_smollm3},
    {"olmo2", "Olmo2ForCausalLM", read_olmo2},
};

struct Found {
  const Family* family;
  ConfigReader config;
};

Result<const Family*> family_named(std::string_view name, std::string_view Family::* column) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (!name.empty() && family.*column == name) return &family;
    if ((family.*column).empty()) continue;
    known += (known.empty() ? "" : ", ") + std::string(family.*column);
  }
  return unsupported_model("the model's architecture is \"" + std::string(name.substr(0, 64)) +
                           "\"; known are: " + known);
}

Result<Found> find_gguf_family(const weights::GgufFile& file) {
  TANDEM_TRY(name, file.string("general.architecture"));
  TANDEM_TRY(family, family_named(name, &Family::gguf));
  TANDEM_TRY(config, ConfigReader::from_gguf(file, name));
  return Found{family, std::move(config)};
}

// Whether a quantization_config is about the KV cache alone: its scales are tensors, and the
// weights are as ever.
bool quantizes_cache_only(const JsonValue& config) {
  const JsonValue* cache = config.find("kv_cache_scheme");
  const JsonValue* weights = config.find("config_groups");
  const bool none = weights == nullptr || weights->is_null() ||
                    (weights->is_object() && weights->members().empty());
  return cache != nullptr && cache->is_object() && none;
}

Result<Found> find_hf_family(const weights::Checkpoint& checkpoint) {
  const JsonValue* document = checkpoint.json("config.json");
  if (document == nullptr) return invalid_model("the model has no config.json");
  const JsonValue* names = document->find("architectures");
  const bool named = names != nullptr && names->is_array() && !names->items().empty();
  TANDEM_TRY(family, family_named(named ? names->items().front().as_string() : std::string(),
                                  &Family::architecture));
  // A model with other inputs than text keeps the text model's facts in an object of their own.
  const JsonValue* text = document->find("text_config");
  const bool inner = text != nullptr && text->is_object();
  const JsonValue* quantized = document->find("quantization_config");
  if (quantized != nullptr && !quantized->is_null() && !quantizes_cache_only(*quantized)) {
    return unsupported_model(
        "the model's config.json has a quantization_config; of safetensors, unquantized weights "
        "are "
        "supported (for quantized weights use a GGUF)");
  }
  return Found{family, ConfigReader(inner ? *text : *document,
                                    inner ? "config.json: text_config." : "config.json: ")};
}

Result<DecoderSpec> read_spec(const weights::Checkpoint& checkpoint, int32_t served_context) {
  TANDEM_TRY(found, checkpoint.is_gguf() ? find_gguf_family(*checkpoint.gguf())
                                         : find_hf_family(checkpoint));
  const ModelSource source = {.checkpoint = checkpoint,
                              .config = std::move(found.config),
                              .served_context = served_context};
  TANDEM_TRY(spec, found.family->read(source));
  TANDEM_CHECK(source.config.finish());
  spec.config.architecture =
      found.family->gguf.empty() ? found.family->architecture : found.family->gguf;
  for (DecoderLayer& layer : spec.layers) {
    if (layer.window >= spec.config.context_length) layer.window = 0;  // hides nothing
    spec.config.window = std::max(spec.config.window, layer.window);
  }
  return spec;
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(weights::Checkpoint checkpoint,
                                          const ModelOptions& options) {
  TANDEM_TRY(spec, read_spec(checkpoint, options.served_context));
  return load_decoder(std::move(checkpoint), std::move(spec), options);
}

Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options) {
  TANDEM_TRY(checkpoint, weights::Checkpoint::open(path));
  return load_model(std::move(checkpoint), options);
}

Result<ModelConfig> read_model_config(const weights::Checkpoint& checkpoint) {
  TANDEM_TRY(spec, read_spec(checkpoint, 0));
  return spec.config;
}

Result<ModelPages> read_model_pages(const weights::Checkpoint& checkpoint, ops::KvDtype dtype,
                                    int32_t block_tokens) {
  TANDEM_TRY(spec, read_spec(checkpoint, 0));
  PageGroups groups = deal_page_groups(windows_of(spec));
  const ops::PageLayout layout = page_layout_of(spec.config, groups, dtype, block_tokens);
  return ModelPages{spec.config, layout, std::move(groups.groups)};
}

}  // namespace tandem::model
