// Tokenizer: text to token ids and back, exactly as the reference `tokenizers` library does for the
// same vocabulary. Byte-level BPE. Immutable; every method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

struct EncodeOptions {
  // Match the spelling of special tokens in the text. For text that a template or the operator
  // wrote; text of users goes through encode_chat, which makes their spellings harmless.
  bool parse_special = false;
  // Put the begin-of-sequence token first, when the tokenizer has one and asks for it.
  bool add_bos = false;
  // Dropped after splitting on special tokens and before anything else sees the text; empty: none.
  std::string_view sentinel = {};
};

class Tokenizer {
 public:
  // Errors: 400 "unsupported_tokenizer" or "invalid_tokenizer" with what is wrong.
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerSpec spec);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Never fails: bytes that are not UTF-8 are ordinary bytes. Linear in the text (times a
  // logarithm). A byte that the vocabulary lacks yields no token, as in the reference.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes a token stands for (for a special token its spelling); empty when out of range.
  std::string_view token_bytes(int32_t token) const;
  // All tokens' bytes as valid UTF-8, invalid sequences as U+FFFD. Control tokens only when asked
  // for.
  std::string decode(std::span<const int32_t> tokens, bool keep_special = false) const;

  int32_t vocab_size() const;
  bool is_end_of_generation(int32_t token) const;
  // Control tokens produce no text.
  bool is_control(int32_t token) const;
  // Ids matched by parse_special: control and user-defined tokens, ascending.
  const std::vector<int32_t>& special_tokens() const;
  // -1 when there is none.
  int32_t bos() const;
  int32_t eos() const;
  const TokenizerSpec& spec() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem::text
