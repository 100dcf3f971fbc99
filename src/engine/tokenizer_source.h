// Where a served model's text side comes from: a model file's metadata.
#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer_spec.h"
#include "weights/checkpoint.h"

namespace tandem::engine {

// Tokenizer and chat template of a GGUF (keys tokenizer.ggml.*, tokenizer.chat_template). Ids that
// end a turn are eos, eot, eom and the control tokens that the common templates end turns with.
Result<text::TokenizerSpec> tokenizer_spec_of(const weights::Checkpoint& checkpoint);

// The checkpoint's digest in hex: the KV lineage of a model whose source revision is not configured
// (DESIGN I5).
std::string lineage_of(const weights::Checkpoint& checkpoint);

}  // namespace tandem::engine
