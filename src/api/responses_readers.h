// Readers of the Responses dialect's fields that no rule of field_table.h says. Each fills the same
// request as the chat dialect's, and names its own fields in errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

// Reasoning as a text that clients carry back unread, with check digits. It is no secret: the item
// says the same in the open, and a key would only tie a conversation to the process or the router
// that has it. What it was: empty when it is another server's; nothing when it was changed.
std::string seal_reasoning(std::string_view text);
std::optional<std::string> open_reasoning(std::string_view sealed);

}  // namespace tandem::api
