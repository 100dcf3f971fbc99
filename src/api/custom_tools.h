// Custom tools: they take a text instead of arguments, which a grammar of their own may describe.
// Models are told of them as functions of one text, `input`. Pure.
#pragma once

#include <string>
#include <string_view>

#include "api/field_table.h"

namespace tandem::api {

// `tool`: name, description, format; its format's grammar may stand in it or in a member `grammar`.
// `space`: its namespace, may be empty. Errors: 400 with the pointer.
Status add_custom_tool(const JsonValue& tool, const std::string& space, const std::string& at,
                       Draft& draft);

// What the model is told: "space__name".
std::string qualified_name(const std::string& space, const std::string& name);
// Null: a function as the client named it.
const ToolName* find_tool_name(const ApiRequest& request, std::string_view told);
bool is_custom(const ApiRequest& request, std::string_view told);

// The text out of the arguments that a model wrote, and back.
std::string custom_input(const std::string& arguments);
JsonValue custom_arguments(const std::string& input);

}  // namespace tandem::api
