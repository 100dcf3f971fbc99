#include "hub/model_name.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/environment.h"

namespace tandem::hub {

namespace {

namespace fs = std::filesystem;

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= 96 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

bool ends(std::string_view path, std::string_view ending) { return lower(path).ends_with(ending); }

// "x-00002-of-00005.gguf" -> "x"; nothing when it is not a part.
std::optional<std::string> split_stem(std::string_view path) {
  constexpr std::string_view kShape = "-00001-of-00001.gguf";
  if (!ends(path, ".gguf") || path.size() <= kShape.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kShape.size());
  for (size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = kShape[i] == '0' || kShape[i] == '1';
    if (digit ? std::isdigit(static_cast<unsigned char>(tail[i])) == 0 : tail[i] != kShape[i])
      return std::nullopt;
  }
  return std::string(path.substr(0, path.size() - kShape.size()));
}

// The file and, if it is a part of a split one, its siblings; sorted.
std::vector<std::string> with_parts(const std::vector<std::string>& paths, const std::string& one) {
  const auto stem = split_stem(one);
  if (!stem) return {one};
  std::vector<std::string> parts;
  for (const std::string& path : paths) {
    if (split_stem(path) == stem) parts.push_back(path);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

bool holds_tag(std::string_view path, std::string_view tag) {
  const std::string name = lower(file_name(path));
  const std::string wanted = lower(tag);
  const auto mark = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_';
  };
  for (size_t at = name.find(wanted); at != std::string::npos; at = name.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    if ((at == 0 || mark(name[at - 1])) && (end == name.size() || mark(name[end]))) return true;
  }
  return false;
}

// One path for each GGUF, split or not: its first part.
std::vector<std::string> ggufs(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    if (!ends(path, ".gguf") || lower(file_name(path)).starts_with("mmproj")) continue;
    if (const auto parts = with_parts(paths, path); parts.front() == path) found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 24; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > 24) text += ", ... (" + std::to_string(names.size()) + " in all)";
  return text.empty() ? "none" : text;
}

bool is_document(std::string_view path) {
  for (const std::string_view ending : {".json", ".jinja", ".model", ".tiktoken"}) {
    if (ends(path, ending)) return true;
  }
  return path == "merges.txt" || path == "vocab.txt";
}

std::vector<std::string> safetensors(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  bool named_model = false;
  for (const std::string& path : paths) {
    if (path.find('/') == std::string::npos && ends(path, ".safetensors")) {
      found.push_back(path);
      named_model |= path.starts_with("model");
    }
  }
  // Some repositories have the weights twice: once more as consolidated.safetensors.
  if (named_model)
    std::erase_if(found, [](const std::string& path) { return path.starts_with("consolidated"); });
  return found;
}

}  // namespace

std::optional<ModelName> parse_model_name(std::string_view text) {
  ModelName parsed;
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    parsed.file = text.substr(colon + 1);
    if (parsed.file.empty() || !is_safe_path(parsed.file)) return std::nullopt;
    text = text.substr(0, colon);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  parsed.organization = text.substr(0, slash);
  parsed.name = text.substr(slash + 1);
  if (!is_word(parsed.organization) || !is_word(parsed.name)) return std::nullopt;
  return parsed;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > 512 || path.front() == '/') return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

Result<std::vector<std::string>> choose_files(const std::vector<std::string>& paths,
                                              const std::string& file) {
  const std::vector<std::string> all = ggufs(paths);
  const auto ambiguous = [&](const std::vector<std::string>& found) {
    return make_error(400, "file_ambiguous",
                      "Several files fit; name one after a colon: " + listed(found));
  };
  if (!file.empty()) {
    if (std::find(paths.begin(), paths.end(), file) != paths.end()) return with_parts(paths, file);
    std::vector<std::string> found;
    for (const std::string& path : all) {
      if (file_name(path) == file || holds_tag(path, file)) found.push_back(path);
    }
    if (found.size() > 1) return ambiguous(found);
    if (found.empty()) {
      return make_error(404, "file_not_found",
                        "There is no file \"" + file + "\"; GGUF files there: " + listed(all));
    }
    return with_parts(paths, found.front());
  }
  if (std::vector<std::string> chosen = safetensors(paths); !chosen.empty()) {
    for (const std::string& path : paths) {
      if (path.find('/') == std::string::npos && is_document(path)) chosen.push_back(path);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }
  if (all.size() == 1) return with_parts(paths, all.front());
  if (all.empty()) {
    return make_error(404, "file_not_found",
                      "It has neither safetensors nor GGUF files; it has: " + listed(paths));
  }
  std::vector<std::string> usual;
  for (const std::string& path : all) {
    if (holds_tag(path, "q4_k_m")) usual.push_back(path);
  }
  return usual.size() == 1 ? Result<std::vector<std::string>>(with_parts(paths, usual.front()))
                           : ambiguous(all);
}

std::string default_models_directory() {
  if (std::string own = environment("TANDEM_MODELS"); !own.empty()) return own;
  if (const std::string data = environment("XDG_DATA_HOME"); !data.empty())
    return data + "/tandem/models";
  return environment("HOME") + "/.local/share/tandem/models";
}

Result<LocalModel> find_model(const std::string& text, const std::string& models_directory) {
  std::error_code error;
  if (text.starts_with("scripted:") || fs::exists(text, error)) return LocalModel{text, ""};
  const auto name = parse_model_name(text);
  if (!name) {
    return make_error(404, "model_not_found",
                      "There is no file or directory \"" + text +
                          "\"; a model from a hub is named "
                          "ORG/NAME or ORG/NAME:FILE.");
  }
  const fs::path folder = fs::path(models_directory) / name->organization / name->name;
  std::vector<std::string> paths;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().lexically_relative(folder).string();
    if (entry->is_regular_file() && !path.ends_with(".part") && !path.starts_with("."))
      paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    return make_error(404, "model_not_found",
                      "\"" + text + "\" is neither a path nor a model in " + models_directory +
                          "; get it with: tandem pull " + text);
  }
  auto chosen = choose_files(paths, name->file);
  if (!chosen) {
    return make_error(chosen.error().status, chosen.error().code,
                      folder.string() + ": " + chosen.error().message +
                          ". More files come with: tandem pull " + text);
  }
  const bool gguf = ends(chosen->front(), ".gguf");
  return LocalModel{gguf ? (folder / chosen->front()).string() : folder.string(),
                    name->repository()};
}

}  // namespace tandem::hub
