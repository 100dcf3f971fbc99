// Names of models: ORG/NAME[:FILE], and which files of a repository make one model. Thread-safe
// (no state).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::hub {

struct ModelName {
  std::string organization;
  std::string name;
  std::string file;  // a file's name or a part of it such as Q4_K_M; empty: the usual choice
  std::string repository() const { return organization + "/" + name; }
};
// "ORG/NAME" or "ORG/NAME:FILE" of letters, digits and "-_."; nothing for anything else (a path).
std::optional<ModelName> parse_model_name(std::string_view text);

// True when a server may name it and we may write it: relative, no "..", no control bytes.
bool is_safe_path(std::string_view path);

// Which of `paths` make the model that `file` means:
// * a file's own name (with the other parts of a split GGUF), else the GGUF whose name holds `file`
//   between marks, whatever its case (":q4_k_m");
// * nothing asked: the safetensors files with their JSON, tokenizer and template documents; without
//   such, the only GGUF, or among several the Q4_K_M one.
// Errors: 404 "file_not_found" and 400 "file_ambiguous", which list what there is.
Result<std::vector<std::string>> choose_files(const std::vector<std::string>& paths,
                                              const std::string& file);

// $TANDEM_MODELS, else $XDG_DATA_HOME/tandem/models, else ~/.local/share/tandem/models.
std::string default_models_directory();

// What `--model TEXT` means: a path that exists (or "scripted:..."), as it is; else a pulled model:
// the path of its GGUF (the first part) or of its directory. Errors: 404 "model_not_found", which
// says how to get it.
struct LocalModel {
  std::string path;
  std::string name;  // ORG/NAME of a pulled model, else empty
};
Result<LocalModel> find_model(const std::string& text, const std::string& models_directory);

}  // namespace tandem::hub
