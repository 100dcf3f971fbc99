// Shared by the model's tests: where things are, which instruction sets this machine has, loading
// from bytes.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "model/registry.h"
#include "model/tiny_llama.h"
#include "ops/cpu/dispatch.h"

namespace tandem::model {

inline std::string source_path(const std::string& relative) {
  return std::string(TANDEM_SOURCE_DIR) + "/" + relative;
}
inline std::string smollm2_path() { return source_path("models/smollm2-135m-instruct.Q4_1.gguf"); }

inline std::string gemma3_path() { return source_path("models/gemma-3-270m.Q4_K_M.gguf"); }

inline std::vector<std::string> machine_isas() {
  std::vector<std::string> names;
  for (const auto isa : kCpuLevels) {
    if (isa <= ops::cpu::machine_isa()) names.emplace_back(ops::cpu::isa_name(isa));
  }
  return names;
}

// A file that disappears with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::byte> bytes) {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-model-XXXXXX").string();
    const int descriptor = ::mkstemp(pattern.data());
    path_ = pattern;
    EXPECT_GE(descriptor, 0);
    EXPECT_EQ(::write(descriptor, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::unique_ptr<Model> load_tiny(const TinyLlama& spec, const ModelOptions& options) {
  const TemporaryFile file(make_tiny_llama(spec));
  auto model = load_model(file.path(), options);
  if (!model) {
    ADD_FAILURE() << model.error().message;
    return nullptr;
  }
  return std::move(*model);
}

inline std::vector<int32_t> random_tokens(int32_t count, int32_t vocab, uint64_t seed) {
  TinyRandom random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random.next() % static_cast<uint64_t>(vocab));
  return tokens;
}

}  // namespace tandem::model
