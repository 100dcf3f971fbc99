// ConfigReader: the facts of a model's configuration, one way to read them whether they come from a
// GGUF's "ARCHITECTURE.*" metadata or from Hugging Face's config.json. It remembers what was read,
// so that finish() can refuse a configuration that says something nobody looked at: such a model
// would run, wrongly.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
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
  // `facts` is a JSON object; `prefix` stands before a key in errors ("llama.", "config.json: ").
  ConfigReader(JsonValue facts, std::string prefix)
      : facts_(std::move(facts)), prefix_(std::move(prefix)) {}

  // The keys of `file` that start with "ARCHITECTURE.", without that. Error: an array that is none
  // of numbers, booleans or strings.
  static Result<ConfigReader> from_gguf(const weights::GgufFile& file,
                                        std::string_view architecture);

  // Present and not null.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_null(std::string_view key) const;  // there, and null
  // Null when absent or null.
  const JsonValue* find(std::string_view key) const;
  // An integer in [low, high]; `fallback` when the key is absent and a fallback is given.
  Result<int32_t> integer(std::string_view key, int64_t low, int64_t high,
                          std::optional<int32_t> fallback = std::nullopt) const;
  // A finite real above 0.
  Result<double> positive_real(std::string_view key,
                               std::optional<double> fallback = std::nullopt) const;
  Result<bool> boolean(std::string_view key, bool fallback) const;
  Result<std::string> string(std::string_view key,
                             std::optional<std::string_view> fallback = std::nullopt) const;
  Result<std::vector<double>> positive_reals(std::string_view key) const;
  // One entry per layer, given as an array of strings, numbers or booleans; empty when absent.
  Result<std::vector<JsonValue>> per_layer(std::string_view key, int32_t layers) const;
  // An object inside; nullopt when absent.
  Result<std::optional<ConfigReader>> child(std::string_view key) const;

  // Marks a key as one that changes nothing here.
  void ignore(std::string_view key) const { read_.emplace(key); }
  // Error 400 "unsupported_model" naming a key that was neither read nor ignored, does not start
  // with an underscore, and says more than null, false, 0 or nothing.
  Status finish() const;

  std::string name(std::string_view key) const { return prefix_ + std::string(key); }

 private:
  JsonValue facts_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace tandem::model
