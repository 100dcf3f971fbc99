// Tokens to a tree, with the reference grammar's precedence.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"

namespace tandem::text::jinja {

// Errors: 400 "invalid_chat_template" with the line. Nesting is bounded.
Result<std::vector<NodePtr>> parse(std::string_view source);

}  // namespace tandem::text::jinja
