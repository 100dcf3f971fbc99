// The text side of a model that Tandem's own workers serve: its tokenizer and its chat template.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"

namespace tandem::router {

struct ServedText {
  std::string identity;  // text::tokenizer_identity() of what it was made of
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
};

// With a cache for pieces of conversations that come again with every turn. Any thread. Errors: 400
// "unsupported_tokenizer", "invalid_tokenizer", "invalid_chat_template".
Result<ServedText> make_served_text(text::TokenizerSpec spec);

}  // namespace tandem::router
