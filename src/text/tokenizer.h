// Tokenizer: text to token ids and back, exactly as the reference libraries (`tokenizers`,
// `sentencepiece`, `tiktoken`) do for the same vocabulary: BPE of bytes or characters, and unigram.
// Immutable; every method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/segment_cache.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

struct EncodeOptions {
  // Match the spelling of control tokens in the text. For text that a template or the operator
  // wrote; text of users goes through encode_chat, which makes their spellings harmless.
  // User-defined tokens (such as "<think>" or runs of spaces) are always matched, as the reference
  // libraries do.
  bool parse_special = false;
  // Put the begin-of-sequence token first, when the tokenizer has one and asks for it.
  bool add_bos = false;
  // A noncharacter that breaks spellings: dropped after splitting on special tokens and before the
  // text is encoded; empty: none. With it, user-defined tokens other than runs of spaces are found
  // only where the text itself spells them: no normalizer can make one.
  std::string_view sentinel = {};
};

class Tokenizer {
 public:
  // `cache_bytes`: memory for pieces of text that may come again (segment_cache.h); 0: none are
  // kept. Errors: 400 "unsupported_tokenizer" or "invalid_tokenizer" with what is wrong.
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerSpec spec,
                                                         size_t cache_bytes = 0);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Never fails: bytes that are not UTF-8 are ordinary bytes. Linear in the text (times a
  // logarithm; patterns of the tokenizer that no scanner knows cost more, see regex.h). What the
  // vocabulary lacks yields the unknown token, or none when there is none, as in the reference.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The bytes a token stands for (for a control token its spelling); empty when out of range.
  std::string_view token_bytes(int32_t token) const;
  // All tokens' bytes as valid UTF-8, invalid sequences as U+FFFD; without the space that
  // SentencePiece put before the text. Control tokens only when asked for.
  std::string decode(std::span<const int32_t> tokens, bool keep_special = false) const;

  int32_t vocab_size() const;
  bool is_end_of_generation(int32_t token) const;
  // Control tokens produce no text.
  bool is_control(int32_t token) const;
  // Control and user-defined tokens, ascending.
  const std::vector<int32_t>& special_tokens() const;
  // -1 when there is none.
  int32_t bos() const;
  int32_t eos() const;
  const TokenizerSpec& spec() const;
  const SegmentCache* segment_cache() const;  // null: it has none

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Whether a user-defined token stands for something other than a run of spaces or line ends.
bool is_marker_spelling(std::string_view spelling);

}  // namespace tandem::text
