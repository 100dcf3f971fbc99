// The OpenAPI 3.1 document of the public routes, made from the tables that validate requests and
// from the schemas of the replies.
#pragma once

#include <string>
#include <string_view>

#include "api/openai.h"
#include "base/json_value.h"

namespace tandem::api {

JsonValue openapi_document();

// The schema of a request body.
JsonValue request_schema(Endpoint endpoint);

// components/schemas of every reply: one JSON object, as text.
extern const std::string_view kReplySchemas;

}  // namespace tandem::api
