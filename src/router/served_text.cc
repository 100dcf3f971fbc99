#include "router/served_text.h"

#include <utility>

namespace tandem::router {

namespace {
constexpr size_t kTokenizerCacheBytes = size_t{64} << 20;
}  // namespace

Result<ServedText> make_served_text(text::TokenizerSpec spec) {
  ServedText made;
  made.identity = text::tokenizer_identity(spec);
  if (!spec.chat_template.empty()) {
    TANDEM_TRY(parsed, text::ChatTemplate::parse(spec.chat_template, spec.tool_template));
    made.chat_template = std::make_shared<const text::ChatTemplate>(std::move(parsed));
  }
  TANDEM_TRY(tokenizer, text::Tokenizer::create(std::move(spec), kTokenizerCacheBytes));
  made.tokenizer = std::move(tokenizer);
  return made;
}

}  // namespace tandem::router
