// Walks a parsed template and renders it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace tandem::text::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// Errors: 400 "chat_template_error": the message of raise_exception as it is, or what went wrong
// and the line.
Result<std::string> render(const std::vector<NodePtr>& body, const Variables& context,
                           const RenderOptions& options);

}  // namespace tandem::text::jinja
