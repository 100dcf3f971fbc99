// The readers of fields that need more than a type and a range; rows of request_tables.cc name
// them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "api/field_table.h"

namespace tandem::api {

inline constexpr size_t kMaxTools = 4096;  // of one request, whatever its dialect

Status read_logit_bias(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_stops(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_stop_tokens(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_response_format(const JsonValue& value, const std::string& pointer, Draft& draft);
// {"type": "text" | "json_object" | "json_schema", ...} as the newer dialects write it, flat.
Status read_text_format(const JsonValue& value, const std::string& pointer, Draft& draft);
// Formats as other servers' fields name them; an empty one is as good as none.
Status read_format_schema(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_format_regex(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_format_choice(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_format_grammar(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_structured_outputs(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_tools(const JsonValue& value, const std::string& pointer, Draft& draft);
// A choice that is a word: "none", "auto", "required". False: another one, or no text.
bool read_choice_word(const JsonValue& value, Draft& draft);
Status read_tool_choice(const JsonValue& value, const std::string& pointer, Draft& draft);
// {"mode": "auto" | "required", "tools": [...]}, wherever a dialect puts it; `name_of` gives an
// entry's name, empty: it lacks one, absent: it is no tool of ours. Auto without tools is "none".
Status read_allowed_tools(
    const JsonValue& value, const std::string& pointer,
    const std::function<std::optional<std::string>(const JsonValue&)>& name_of, Draft& draft);
Status read_template_arguments(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_messages(const JsonValue& value, const std::string& pointer, Draft& draft);
// Text, token ids, or an array of either; none may be an empty array.
Status read_prompts(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_prompt_text(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_token_prompt(const JsonValue& value, const std::string& pointer, Draft& draft);

}  // namespace tandem::api
