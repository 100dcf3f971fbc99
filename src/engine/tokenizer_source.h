// Where a served model's text side comes from: a checkpoint's metadata and documents.
#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer_spec.h"
#include "weights/checkpoint.h"

namespace tandem::engine {

// Tokenizer and chat template. Of a GGUF: the keys tokenizer.ggml.* and tokenizer.chat_template. Of
// a directory: tokenizer.json, else tekken.json, tokenizer.model (SentencePiece) or tiktoken.model
// (Kimi's); with tokenizer_config.json, special_tokens_map.json and generation_config.json beside
// it; the template is additional_chat_templates/tool_use.jinja and chat_template.jinja, else the
// string or the named list of tokenizer_config.json. Ids that end a turn are eos, eot, eom, those
// of generation_config.json and the control tokens that the common templates end turns with.
// Errors: 400 "invalid_model", "invalid_tokenizer" or "unsupported_tokenizer".
Result<text::TokenizerSpec> tokenizer_spec_of(const weights::Checkpoint& checkpoint);

// The checkpoint's digest in hex: the KV lineage of a model whose source revision is not configured
// (DESIGN I5).
std::string lineage_of(const weights::Checkpoint& checkpoint);

}  // namespace tandem::engine
