// Checkpoint: a model on disk, whatever its files: one GGUF, a split one, or a directory in Hugging
// Face's layout (config.json beside safetensors). Gives the tensors by the names the files use, and
// the metadata in the form the files have it (GGUF keys or JSON documents); what the names mean is
// the model's business.
//
// Immutable but for release_resident(), so safe to read from any thread. Move-only; tensors and
// documents view memory of this object (moving it keeps them valid).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "numerics/digest.h"
#include "weights/gguf.h"
#include "weights/mapped_file.h"
#include "weights/safetensors.h"
#include "weights/tensor.h"

namespace tandem::weights {

class Checkpoint {
 public:
  // `path` is a GGUF (any part of a split one, NAME-00001-of-00003.gguf), a directory with
  // config.json and model.safetensors or model.safetensors.index.json (or adapter_config.json and
  // adapter_model.safetensors), or one .safetensors file with its config.json beside it. Errors:
  // 400 "model_not_found", "invalid_model" (files that contradict themselves or each other) or
  // "unsupported_model" (tensors in a number format that this program lacks).
  static Result<Checkpoint> open(const std::string& path);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  bool is_gguf() const { return !parts_.empty(); }
  // Metadata of the first part; null when this is no GGUF.
  const GgufFile* gguf() const { return parts_.empty() ? nullptr : &parts_.front(); }

  // A JSON document of the directory, for example "config.json" (the names are in
  // checkpoint_directory.cc); null when absent.
  const JsonValue* json(std::string_view file_name) const;
  // The bytes of a document, JSON or not ("chat_template.jinja", "tokenizer.model",
  // "additional_chat_templates/NAME.jinja").
  std::optional<std::string> text(std::string_view file_name) const;
  // Names that text() knows, sorted.
  std::vector<std::string> documents() const;

  const Tensor* find_tensor(std::string_view name) const;
  const std::vector<Tensor>& tensors() const { return tensors_; }

  // SHA-256 of everything: a single GGUF's bytes; else each file's name, size and bytes, in a fixed
  // order. Reads all of it, but for a large GGUF that DigestCache knows. Documents count, so ask
  // before release_resident().
  numerics::Digest digest() const;
  uint64_t file_bytes() const;  // all files together

  // After loading: gives mapped pages back to the kernel and frees the documents (json() and text()
  // find nothing from then on). Tensors stay readable.
  void release_resident();

 private:
  struct Document {
    MappedFile file;
    std::optional<JsonValue> json;
  };

  Checkpoint() = default;
  static Result<Checkpoint> open_gguf(const std::string& path);
  // `file_name` of the weights in `directory`; empty: by the layout's names.
  static Result<Checkpoint> open_directory(const std::string& directory,
                                           const std::string& file_name);
  Status read_documents(const std::string& directory);
  Status read_document(const std::string& directory, const std::string& name);
  Status open_indexed(const std::string& directory, const std::string& index_name);
  Status add_tensors(const std::vector<Tensor>& tensors);

  std::vector<GgufFile> parts_;                    // of a GGUF
  std::map<std::string, SafetensorsFile> shards_;  // else, by file name
  std::map<std::string, Document, std::less<>> documents_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace tandem::weights
