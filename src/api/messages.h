// Chat messages of the OpenAI dialect in the shape that chat templates expect.
#pragma once

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// Checks roles and contents. Text parts become one string, joined with "\n"; a missing assistant
// content becomes empty; tool-call arguments that are a JSON object in a string become that object;
// unknown fields stay. `pointer` names the array in errors.
Result<JsonValue> normalize_messages(const JsonValue& messages, const std::string& pointer);

}  // namespace tandem::api
