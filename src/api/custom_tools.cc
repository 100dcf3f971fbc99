#include "api/custom_tools.h"

#include <algorithm>
#include <utility>

#include "api/content_blocks.h"
#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxDefinition = size_t{256} << 10;

Status read_format(const JsonValue& format, const std::string& at, ToolName& to) {
  TANDEM_TRY(type, string_member(format, "type", at));
  if (type == "text") return {};
  if (type != "grammar")
    return make_error(400, "invalid_value", "'type' must be text or grammar", at + "/type");
  const JsonValue* inner = format.find("grammar");
  const JsonValue& grammar = inner != nullptr ? *inner : format;
  const std::string here = inner != nullptr ? at + "/grammar" : at;
  TANDEM_TRY(syntax, string_member(grammar, "syntax", here));
  if (syntax != "lark" && syntax != "regex")
    return make_error(400, "invalid_value", "'syntax' must be lark or regex", here + "/syntax");
  TANDEM_TRY(definition, string_member(grammar, "definition", here));
  if (definition.size() > kMaxDefinition) {
    return make_error(400, "string_above_max_length", "a grammar has at most 256 KiB",
                      here + "/definition");
  }
  to.syntax = syntax;
  to.definition = definition;
  to.pointer = here + "/definition";
  return {};
}

}  // namespace

std::string qualified_name(const std::string& space, const std::string& name) {
  return space.empty() ? name : space + "__" + name;
}

Status add_custom_tool(const JsonValue& tool, const std::string& space, const std::string& at,
                       Draft& draft) {
  TANDEM_TRY(name, string_member(tool, "name", at));
  ToolName known{.told = qualified_name(space, name), .space = space, .name = name, .custom = true};
  const JsonValue* format = tool.find("format");
  if (format != nullptr && !format->is_null())
    TANDEM_CHECK(read_format(*format, at + "/format", known));
  JsonValue input = JsonValue::object({{"type", JsonValue::string("string")}});
  JsonValue parameters = JsonValue::object({{"type", JsonValue::string("object")}});
  parameters.set("properties", JsonValue::object({{"input", std::move(input)}}));
  parameters.set("required", JsonValue::array({JsonValue::string("input")}));
  parameters.set("additionalProperties", JsonValue::boolean(false));
  draft.request.tools.push_back(
      function_tool(known.told, tool.find("description"), &parameters, nullptr));
  draft.request.tool_pointers.push_back(at);
  draft.request.tool_names.push_back(std::move(known));
  return {};
}

const ToolName* find_tool_name(const ApiRequest& request, std::string_view told) {
  const auto known = std::ranges::find(request.tool_names, told, &ToolName::told);
  return known == request.tool_names.end() ? nullptr : &*known;
}

bool is_custom(const ApiRequest& request, std::string_view told) {
  const ToolName* known = find_tool_name(request, told);
  return known != nullptr && known->custom;
}

std::string custom_input(const std::string& arguments) {
  const auto read = parse_json(arguments);
  const JsonValue* input = read ? read->find("input") : nullptr;
  return input != nullptr && input->is_string() ? input->as_string() : arguments;
}

JsonValue custom_arguments(const std::string& input) {
  return JsonValue::object({{"input", JsonValue::string(input)}});
}

}  // namespace tandem::api
