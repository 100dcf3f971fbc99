// Readers of the Responses dialect's fields that no rule of field_table.h says. Each fills the same
// request as the chat dialect's, and names its own fields in errors.
#pragma once

#include <string>

#include "api/field_table.h"

namespace tandem::api {

// A text or a list of items. Kinds of items that nobody knows are ignored.
Status read_input(const JsonValue& value, const std::string& pointer, Draft& draft);
// Functions, namespaces of functions and custom tools; what others run is ignored.
Status read_response_tools(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_response_tool_choice(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_reasoning(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_text_options(const JsonValue& value, const std::string& pointer, Draft& draft);
Status read_include(const JsonValue& value, const std::string& pointer, Draft& draft);

// The name under which the model is told of a function in a namespace.
std::string qualified_name(const std::string& space, const std::string& name);

// Reasoning as a text that clients carry back unread, and what it was; empty: it is none of ours.
std::string seal_reasoning(std::string_view text);
std::string open_reasoning(std::string_view sealed);

}  // namespace tandem::api
