// Reads a SentencePiece model file (a protocol buffer: pieces, trainer and normalizer options) into
// a TokenizerSpec.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

// Models of type unigram and BPE. Errors: 400 "invalid_tokenizer" (damaged) or
// "unsupported_tokenizer".
Result<TokenizerSpec> tokenizer_spec_of_sentencepiece(std::string_view bytes);

// Spellings of the user-defined tokens, for the normalizer (normalizer.h).
JsonValue user_defined_of(const TokenizerSpec& spec);

}  // namespace tandem::text
