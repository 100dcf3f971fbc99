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

struct TokenizerSpec {
  std::string kind;                 // "bpe": byte-level BPE ("gpt2" in GGUF)
  std::string pre;                  // pre-tokenizer name, as tokenizer.ggml.pre: "smollm"
  std::vector<std::string> tokens;  // by id; byte-level BPE pieces in the printable byte alphabet
  std::vector<int32_t> types;       // TokenType by id; may be empty (all normal)
  std::vector<std::string> merges;  // "left right", most frequent first
  std::vector<float> scores;        // SentencePiece; may be empty
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t unknown = -1;
  int32_t pad = -1;
  std::vector<int32_t> end_of_generation;  // every id that ends a turn, eos included
  bool add_bos = false;
  bool add_eos = false;
  std::string chat_template;
};

// For the router, which asks a worker for its tokenizer. from_json checks every size and id.
JsonValue tokenizer_spec_to_json(const TokenizerSpec& spec);
Result<TokenizerSpec> tokenizer_spec_from_json(const JsonValue& json);

}  // namespace tandem::text
