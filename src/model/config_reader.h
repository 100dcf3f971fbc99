// Reads "ARCHITECTURE.key" metadata with ranges, so that a family's config reader is a list of
// facts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/gguf.h"

namespace tandem::model {

inline tl::unexpected<Error> unsupported_model(std::string message) {
  return make_error(400, "unsupported_model", std::move(message));
}
inline tl::unexpected<Error> invalid_model(std::string message) {
  return make_error(400, "invalid_model", std::move(message));
}

class ConfigReader {
 public:
  ConfigReader(const weights::GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  // An integer in [low, high]; `fallback` when the key is absent and a fallback is given.
  Result<int32_t> integer(std::string_view key, int64_t low, int64_t high,
                          std::optional<int32_t> fallback = std::nullopt) const {
    const std::string name = prefix_ + std::string(key);
    if (fallback && file_.find(name) == nullptr) return *fallback;
    TANDEM_TRY(value, file_.integer(name));
    if (value < low || value > high) {
      return invalid_model(name + " is " + std::to_string(value) + "; expected " +
                           std::to_string(low) + " to " + std::to_string(high));
    }
    return static_cast<int32_t>(value);
  }

  // A finite real above 0.
  Result<float> positive_real(std::string_view key,
                              std::optional<float> fallback = std::nullopt) const {
    const std::string name = prefix_ + std::string(key);
    if (fallback && file_.find(name) == nullptr) return *fallback;
    TANDEM_TRY(value, file_.real(name));
    if (!(value > 0) || value > 1e30) return invalid_model(name + " must be a positive number");
    return static_cast<float>(value);
  }

  bool has(std::string_view key) const { return file_.find(prefix_ + std::string(key)) != nullptr; }
  Result<std::string_view> string(std::string_view key) const {
    return file_.string(prefix_ + std::string(key));
  }

 private:
  const weights::GgufFile& file_;
  std::string prefix_;
};

}  // namespace tandem::model
