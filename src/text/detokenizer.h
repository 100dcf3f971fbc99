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

class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool keep_special = false)
      : tokenizer_(std::move(tokenizer)), keep_special_(keep_special) {}

  // Text that became final with this token; often empty in the middle of a character.
  std::string push(int32_t token);
  // Flushes an incomplete tail as U+FFFD and starts afresh.
  std::string finish();
  bool has_pending() const { return stream_.pending() != 0; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool keep_special_;
  Utf8Stream stream_;
};

}  // namespace tandem::text
