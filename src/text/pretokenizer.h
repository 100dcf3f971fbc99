// Pre-tokenizers: cut text into the pieces that a model tokenizes each by itself. Built from a name
// (tokenizer.ggml.pre) or from the "pre_tokenizer" of a tokenizer.json. Known patterns are scanners
// (scanner.h), others PCRE2 (regex.h). Immutable and thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "text/function_ref.h"
#include "text/scanner.h"

namespace tandem::text {

class PreTokenizer {
 public:
  using Sink = FunctionRef<void(std::string_view)>;
  class Step {
   public:
    virtual ~Step() = default;
    // `first`: the text's first piece. Calls the sink for each part, in order; a part may view
    // memory that lasts only for that call.
    virtual void split(std::string_view piece, bool first, Sink sink) const = 0;
  };

  PreTokenizer() = default;
  // Errors: 400 "unsupported_tokenizer" for a name or a type that is not known here,
  // "invalid_tokenizer" for a malformed description.
  static Result<PreTokenizer> named(std::string_view name);
  static Result<PreTokenizer> create(const JsonValue& json);

  // A description has a ByteLevel step: pieces are bytes spelled in the printable alphabet.
  bool byte_level() const { return byte_level_; }
  // The only step, when that is a scanner.
  const ScanRules* scanner() const { return scanner_ ? &*scanner_ : nullptr; }
  bool empty() const { return steps_.empty(); }

  void split(std::string_view text, bool first, Sink sink) const { run(0, text, first, sink); }

 private:
  friend class PreTokenizerBuilder;
  void run(size_t step, std::string_view piece, bool first, Sink sink) const;

  std::vector<std::unique_ptr<const Step>> steps_;
  std::optional<ScanRules> scanner_;
  bool byte_level_ = false;
};

}  // namespace tandem::text
