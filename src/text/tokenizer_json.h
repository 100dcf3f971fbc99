// Reads the tokenizer.json of the `tokenizers` library into a TokenizerSpec.
#pragma once

#include "base/json_value.h"
#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

// Models BPE (by bytes or by characters, with byte fallback) and Unigram; see normalizer.h and
// pretokenizer.h for what may surround them. The chat template and what tokenizer_config.json says
// are the caller's to add. Errors: 400 "invalid_tokenizer" or "unsupported_tokenizer".
Result<TokenizerSpec> tokenizer_spec_of_tokenizer_json(const JsonValue& json);

}  // namespace tandem::text
