// What the text of a reply must look like, as a grammar: the answer's own format, calls that are
// demanded, the arguments of strict functions; in the syntax of the model's family, behind its
// reasoning. Pure.
#pragma once

#include <optional>

#include "api/openai.h"
#include "api/tools/reply_parser.h"
#include "base/result.h"
#include "protocol/grammar_spec.h"

namespace tandem::api {

// Of prompts that are no conversation only the answer's format counts. Nothing: the text is free.
// `opening`: how the reply begins. Errors: 400 "unsupported_parameter" when a call is demanded of a
// family whose calls cannot be forced.
Result<std::optional<protocol::GrammarSpec>> reply_grammar(const ApiRequest& request,
                                                           const ReplyFormat& format,
                                                           Opening opening);

}  // namespace tandem::api
