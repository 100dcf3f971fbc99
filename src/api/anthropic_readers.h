// Readers of the Messages dialect's fields that no rule of field_table.h says. Each fills the same
// request as the chat dialect's, and names its own fields in errors.
#pragma once

#include <string>

#include "api/field_table.h"

namespace tandem::api {

Status read_anthropic_messages(const JsonValue& value, const std::string& pointer, Draft& draft);
// A text or a list of text blocks. Blocks that agents put there for billing are no part of the
// prompt: they differ in every conversation and would part all their prefixes.
Status read_anthropic_system(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_anthropic_tools(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_anthropic_tool_choice(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_thinking(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_output_config(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_anthropic_metadata(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_stop_sequences(const JsonValue& value, const std::string& pointer, Draft& draft);

}  // namespace tandem::api
