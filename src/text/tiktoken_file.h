// Reads tiktoken-style vocabularies (bytes by rank) into a TokenizerSpec.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::text {

// Lines of "BASE64 RANK", as tiktoken.model of Kimi or qwen.tiktoken. `pre` names the pattern
// (scanner.h); `special` gives further control tokens. Errors: 400 "invalid_tokenizer".
Result<TokenizerSpec> tokenizer_spec_of_tiktoken(
    std::string_view file, std::string_view pre,
    const std::vector<std::pair<int32_t, std::string>>& special);

// Mistral's tekken.json: its own pattern, and control tokens before the ranks.
Result<TokenizerSpec> tokenizer_spec_of_tekken(const JsonValue& json);

// `bytes` spelled in the printable alphabet of byte-level BPE.
std::string printable_bytes(std::string_view bytes);

}  // namespace tandem::text
