#include "model/registry.h"

#include "model/llama.h"

namespace tandem::model {
namespace {

struct Family {
  std::string_view architecture;
  Result<ModelConfig> (*read_config)(const weights::Checkpoint& checkpoint);
  Result<std::unique_ptr<Model>> (*load)(weights::Checkpoint checkpoint,
                                         const ModelOptions& options);
};

constexpr Family kFamilies[] = {
    {"llama", read_llama_config, load_llama},
};

Result<const Family*> family_of(const weights::Checkpoint& checkpoint) {
  if (!checkpoint.is_gguf()) {
    return make_error(400, "unsupported_model", "only GGUF models are supported");
  }
  TANDEM_TRY(architecture, checkpoint.gguf()->string("general.architecture"));
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return make_error(400, "unsupported_model",
                    "the model's architecture is \"" + std::string(architecture.substr(0, 64)) +
                        "\"; known are: " + known);
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(weights::Checkpoint checkpoint,
                                          const ModelOptions& options) {
  TANDEM_TRY(family, family_of(checkpoint));
  return family->load(std::move(checkpoint), options);
}

Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options) {
  TANDEM_TRY(checkpoint, weights::Checkpoint::open(path));
  return load_model(std::move(checkpoint), options);
}

Result<ModelConfig> read_model_config(const weights::Checkpoint& checkpoint) {
  TANDEM_TRY(family, family_of(checkpoint));
  return family->read_config(checkpoint);
}

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.architecture);
  return names;
}

}  // namespace tandem::model
