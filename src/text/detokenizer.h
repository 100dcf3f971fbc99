// Incremental detokenizer: tokens in, whole characters out. Bytes of an unfinished character wait
// for the next token; what can never become a character is U+FFFD. The outputs joined together
// equal Tokenizer::decode of all tokens. One owner; not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tandem::text {

// Bytes in any cuts to valid UTF-8, each maximal invalid sequence replaced by U+FFFD. Holds at most
// 3 bytes.
class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);
  size_t pending() const { return pending_.size(); }

 private:
  std::string pending_;
};

struct DetokenizeOptions {
  bool keep_special = false;  // control tokens give their spelling instead of nothing
  // The tokens continue a text (as those do that a model generates), so that a space which begins
  // them is part of the text. Otherwise they are a text from its start, as in Tokenizer::decode.
  bool continuation = false;
};

// The bytes that tokens add to a text, in order.
class TokenBytes {
 public:
  TokenBytes(const Tokenizer& tokenizer, DetokenizeOptions options);
  std::string_view of(int32_t token);

 private:
  const Tokenizer* tokenizer_;
  bool keep_special_;
  bool strip_space_;   // the next bytes begin the text
  bool strip_spaces_;  // ... and so do those after a token that was one space and nothing else
};

class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizeOptions options = {})
      : tokenizer_(std::move(tokenizer)), options_(options), bytes_(*tokenizer_, options) {}

  // Text that became final with this token; often empty in the middle of a character.
  std::string push(int32_t token);
  // The same for bytes that continue the text, whatever their tokens are.
  std::string push_bytes(std::string_view bytes);
  // Flushes an incomplete tail as U+FFFD and starts afresh.
  std::string finish();
  bool has_pending() const { return stream_.pending() != 0; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  DetokenizeOptions options_;
  TokenBytes bytes_;
  Utf8Stream stream_;
};

}  // namespace tandem::text
