// The bodies of the small endpoints: models, tokens.
#include <utility>

#include "api/fields.h"
#include "api/openai.h"

namespace tandem::api {

namespace {

JsonValue model_json(const ModelEntry& entry, int64_t created) {
  JsonValue model = JsonValue::object();
  model.set("id", JsonValue::string(entry.id));
  model.set("object", JsonValue::string("model"));
  model.set("created", JsonValue::integer(created));
  model.set("owned_by", JsonValue::string("tandem"));
  if (!entry.parent.empty()) model.set("parent", JsonValue::string(entry.parent));
  if (entry.context_length > 0)
    model.set("max_model_len", JsonValue::integer(entry.context_length));
  return model;
}

}  // namespace

std::string models_body(std::span<const ModelEntry> models, int64_t created) {
  JsonValue data = JsonValue::array();
  for (const ModelEntry& entry : models) data.push_back(model_json(entry, created));
  JsonValue json = JsonValue::object({{"object", JsonValue::string("list")}});
  json.set("data", std::move(data));
  return json.dump();
}

std::string model_body(const ModelEntry& model, int64_t created) {
  return model_json(model, created).dump();
}

Error model_not_found(const std::string& name) {
  return {
      404, "model_not_found",
      "the model '" + name.substr(0, 200) + "' is not served here; GET /v1/models lists what is",
      "/model"};
}

std::string tokenize_body(std::span<const int32_t> tokens, int64_t context_length) {
  JsonValue json = JsonValue::object();
  json.set("count", JsonValue::integer(static_cast<int64_t>(tokens.size())));
  json.set("max_model_len", JsonValue::integer(context_length));
  json.set("tokens", token_array(tokens));
  return json.dump();
}

std::string detokenize_body(std::string_view text) {
  return JsonValue::object({{"prompt", JsonValue::string(std::string(text))}}).dump();
}

}  // namespace tandem::api
