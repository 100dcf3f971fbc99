// TokenizerSpec: everything needed to build a tokenizer and its chat template, independent of the
// file it came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::text {

enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// How the spelling of a control or user-defined token is found in text, when that differs from
// "anywhere in the text as written".
struct AddedToken {
  int32_t id = -1;
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;  // and behind it
  bool single_word = false;  // only where no word touches it
  bool normalized = false;   // in normalized text (user-defined tokens only)

  bool operator==(const AddedToken&) const = default;
};

struct TokenizerSpec {
  // "bpe": byte-level BPE by `merges` ("gpt2" in GGUF); "tiktoken": byte-level BPE where a pair's
  // rank is the id of the token it makes; "char_bpe": BPE of characters by `merges`; "spm": BPE of
  // characters where a pair's rank is the score of the token it makes ("llama" in GGUF); "unigram".
  std::string kind;
  std::string pre;                  // pre-tokenizer name, as tokenizer.ggml.pre: "smollm"
  std::vector<std::string> tokens;  // by id; byte-level pieces in the printable byte alphabet
  std::vector<int32_t> types;       // TokenType by id; may be empty (all normal)
  std::vector<std::string> merges;  // "left right", most frequent first
  std::vector<double> scores;       // by id; "spm" and "unigram"
  std::vector<AddedToken> added;
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t unknown = -1;
  int32_t pad = -1;
  std::vector<int32_t> end_of_generation;  // every id that ends a turn, eos included
  bool add_bos = false;
  bool add_eos = false;
  bool whole_words = false;          // a piece that is a token is that token, whatever merges say
  bool fuse_unknown = false;         // unknown tokens in a row become one
  bool single_precision = false;     // "unigram": sums of scores in float
  bool metaspace = false;            // U+2581 in a token's spelling is a space
  bool strip_leading_space = false;  // decoding drops a space that begins the text
  JsonValue normalizer;              // see normalizer.h; null: none
  JsonValue pre_tokenizer;           // see pretokenizer.h; null: `pre` (byte-level kinds), or none
  std::string chat_template;
  std::string tool_template;  // for requests with tools; empty: chat_template
};

// For the router, which asks a worker for its tokenizer. from_json checks every size and id.
JsonValue tokenizer_spec_to_json(const TokenizerSpec& spec);
Result<TokenizerSpec> tokenizer_spec_from_json(const JsonValue& json);

// SHA-256 over every field, in hexadecimal: the same for equal specs only, so that who has one
// need not be sent it. Milliseconds, where writing and reading the JSON takes tens of them.
std::string tokenizer_identity(const TokenizerSpec& spec);

}  // namespace tandem::text
