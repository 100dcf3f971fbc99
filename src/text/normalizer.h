// Normalizers: what a tokenizer does to text before it cuts it, as described by the "normalizer" of
// a tokenizer.json, or by SentencePiece's options in the same dialect:
//   {"type": "SentencePiece", "charsmap": BASE64, "add_dummy_prefix": B,
//    "remove_extra_whitespaces": B, "user_defined": [SPELLING, ...]}
// (user-defined symbols pass the map unchanged).
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::text {

class Normalizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    // Appends the normalized text.
    virtual void apply(std::string_view text, std::string& out) const = 0;
  };

  Normalizer() = default;
  // Null gives one that changes nothing. Errors: 400 "invalid_tokenizer" or
  // "unsupported_tokenizer".
  static Result<Normalizer> create(const JsonValue& json);

  bool empty() const { return steps_.empty(); }
  // The normalized text: `text` itself when there are no steps, else a view of `buffer`. Linear
  // (times a logarithm).
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  friend Status add_normalizer_steps(const JsonValue& json, int depth, Normalizer& out);
  std::vector<std::unique_ptr<const Step>> steps_;
  size_t growth_ = 1;  // how many times longer Replace steps can make a text
};

}  // namespace tandem::text
