// Hugging Face's layout: config.json, tokenizer files and safetensors in one directory, the weights
// in one file or in shards that an index lists. Every file is somebody else's, so they are checked
// against each other.
#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "weights/checkpoint.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDocuments[] = {
    "added_tokens.json",
    "adapter_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
};
constexpr std::string_view kTemplateFolder = "additional_chat_templates";
constexpr std::string_view kWeights = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kAdapter = "adapter_model.safetensors";
constexpr size_t kMaxDocumentBytes = size_t{256} << 20;
constexpr size_t kMaxTemplates = 64;
constexpr size_t kMaxShards = 4096;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_model", std::move(message));
}

bool exists(const std::string& directory, std::string_view name) {
  std::error_code unused;
  return fs::exists(fs::path(directory) / name, unused);
}

std::string join(const std::string& directory, std::string_view name) {
  return (fs::path(directory) / name).string();
}

// "model-00001-of-00002.safetensors" is part of something larger.
bool looks_like_a_shard(std::string_view name) {
  return name.find("-of-") != std::string_view::npos;
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() < 256 && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos && name.ends_with(".safetensors");
}

}  // namespace

Result<Checkpoint> Checkpoint::open_directory(const std::string& directory,
                                              const std::string& file_name) {
  Checkpoint result;
  TANDEM_CHECK(result.read_documents(directory));
  if (result.json("config.json") == nullptr && result.json("adapter_config.json") == nullptr) {
    return make_error(400, "model_not_found", "there is no config.json in " + directory);
  }
  std::string weights = file_name;
  if (looks_like_a_shard(weights) && exists(directory, kIndex)) weights = kIndex;
  if (weights.empty()) {
    for (const std::string_view name : {kWeights, kIndex, kAdapter}) {
      if (weights.empty() && exists(directory, name)) weights = name;
    }
  }
  if (weights.empty()) {
    return make_error(400, "model_not_found",
                      "there is no " + std::string(kWeights) + " and no " + std::string(kIndex) +
                          " in " + directory + "; other formats of weights are not read");
  }
  if (weights == kIndex) {
    TANDEM_CHECK(result.open_indexed(directory, weights));
    return result;
  }
  TANDEM_TRY(file, SafetensorsFile::open(join(directory, weights)));
  TANDEM_CHECK(result.add_tensors(file.tensors()));
  result.shards_.emplace(weights, std::move(file));
  return result;
}

Status Checkpoint::read_documents(const std::string& directory) {
  for (const std::string_view name : kDocuments) {
    if (exists(directory, name)) TANDEM_CHECK(read_document(directory, std::string(name)));
  }
  std::error_code error;
  for (fs::directory_iterator it(join(directory, kTemplateFolder), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".jinja") continue;
    if (documents_.size() > std::size(kDocuments) + kMaxTemplates)
      return invalid("there are too many chat templates in " + directory);
    TANDEM_CHECK(read_document(
        directory, std::string(kTemplateFolder) + "/" + it->path().filename().string()));
  }
  return {};
}

Status Checkpoint::read_document(const std::string& directory, const std::string& name) {
  const std::string path = join(directory, name);
  TANDEM_TRY(file, MappedFile::open(path));
  if (file.bytes().size() > kMaxDocumentBytes) return invalid(path + " is too large");
  std::optional<JsonValue> json;
  if (name.ends_with(".json")) {
    Result<JsonValue> parsed =
        parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    if (!parsed) return invalid(path + ": " + parsed.error().message);
    json = std::move(*parsed);
  }
  documents_.emplace(name, Document{std::move(file), std::move(json)});
  return {};
}

Status Checkpoint::open_indexed(const std::string& directory, const std::string& index_name) {
  TANDEM_CHECK(read_document(directory, index_name));
  const JsonValue* map = json(index_name)->find("weight_map");
  if (map == nullptr || !map->is_object() || map->members().empty())
    return invalid(index_name + " has no weight_map");
  std::set<std::string> names;
  std::map<std::string_view, std::string_view> places;
  for (const auto& [tensor, shard] : map->members()) {
    if (!shard.is_string() || !is_plain_file_name(shard.as_string()))
      return invalid(index_name + " names a file that is no .safetensors beside it");
    names.insert(shard.as_string());
    places.emplace(tensor, shard.as_string());
  }
  if (names.size() > kMaxShards) return invalid(index_name + " names too many files");
  // The index is the directory: what a shard holds beyond it is not part of the model.
  for (const std::string& name : names) {
    TANDEM_TRY(file, SafetensorsFile::open(join(directory, name)));
    std::vector<Tensor> listed;
    for (const Tensor& tensor : file.tensors()) {
      const auto place = places.find(tensor.name);
      if (place == places.end()) continue;
      if (place->second != name) {
        std::string message = "tensor " + tensor.name.substr(0, 128) + " is in " + name;
        message += "; " + index_name + " places it in " + std::string(place->second);
        return invalid(std::move(message));
      }
      listed.push_back(tensor);
    }
    TANDEM_CHECK(add_tensors(listed));
    shards_.emplace(name, std::move(file));
  }
  for (const auto& [tensor, shard] : map->members()) {
    if (find_tensor(tensor) == nullptr) {
      return invalid(index_name + " places tensor " + tensor.substr(0, 128) + " in " +
                     shard.as_string() + ", which does not hold it");
    }
  }
  return {};
}

}  // namespace tandem::weights
