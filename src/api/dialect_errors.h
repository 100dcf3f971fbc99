// How an error is told in the dialect of a request. Pure.
#pragma once

#include <string>

#include "api/openai.h"
#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// {"type": "error", "error": {"type", "message", "code"}}
JsonValue anthropic_error(const Error& error);
// The body of an answer that is an error.
std::string error_text(Endpoint endpoint, const Error& error);

}  // namespace tandem::api
