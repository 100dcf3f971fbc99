// A tokenizer from whatever file a user has of it.
#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tandem::cli {

// A GGUF, a model's folder, a tokenizer.json (with tokenizer_config.json or chat_template.jinja
// beside it), or the JSON that a Tandem worker's /tandem/v1/tokenizer gives. Errors: 400.
Result<text::TokenizerSpec> load_tokenizer_spec(const std::string& path);

}  // namespace tandem::cli
