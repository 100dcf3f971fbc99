#include "cli/tokenizer_file.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/json_value.h"
#include "engine/tokenizer_source.h"
#include "text/tokenizer_json.h"
#include "weights/checkpoint.h"

namespace tandem::cli {

namespace {

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string template_beside(const std::filesystem::path& path) {
  if (auto text = read_file(path.parent_path() / "chat_template.jinja")) return *text;
  const auto config = read_file(path.parent_path() / "tokenizer_config.json");
  const auto json = config ? parse_json(*config) : Result<JsonValue>(JsonValue());
  const JsonValue* const text = json ? json->find("chat_template") : nullptr;
  return text != nullptr && text->is_string() ? text->as_string() : "";
}

}  // namespace

Result<text::TokenizerSpec> load_tokenizer_spec(const std::string& path) {
  if (!path.ends_with(".json")) {
    TANDEM_TRY(checkpoint, weights::Checkpoint::open(path));
    return engine::tokenizer_spec_of(checkpoint);
  }
  const auto content = read_file(path);
  if (!content) return make_error(400, "invalid_tokenizer", "'" + path + "' cannot be read");
  TANDEM_TRY(json, parse_json(*content));
  const JsonValue* const model = json.find("model");
  if (model == nullptr || !model->is_object()) return text::tokenizer_spec_from_json(json);
  TANDEM_TRY(spec, text::tokenizer_spec_of_tokenizer_json(json));
  spec.chat_template = template_beside(path);
  return spec;
}

}  // namespace tandem::cli
