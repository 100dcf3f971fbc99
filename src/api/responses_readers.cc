#include "api/responses_readers.h"

#include <algorithm>
#include <utility>

#include "api/content_blocks.h"
#include "api/custom_tools.h"
#include "api/field_readers.h"
#include "api/fields.h"
#include "text/base64.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxItems = 65536;
constexpr std::string_view kSealed = "tandem2.";

// Of a text, so that a changed one is noticed.
std::string check_digits(std::string_view text) {
  uint64_t state = 0xCBF29CE484222325ULL;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  std::string out;
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[state >> shift & 15];
  return out;
}

std::string text_of(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

// A string or a list of parts.
Result<std::string> content_text(const JsonValue* content, const std::string& at) {
  if (content == nullptr || content->is_null()) return std::string();
  if (content->is_string()) return content->as_string();
  if (!content->is_array())
    return invalid_request("content must be a string or an array of parts", at);
  std::string text;
  for (size_t i = 0; i < content->items().size(); ++i) {
    const JsonValue& part = content->items()[i];
    const std::string here = pointer_to(at, i);
    if (!part.is_object()) return invalid_request("a content part must be an object", here);
    TANDEM_TRY(type, string_member(part, "type", here));
    const bool known = type == "input_text" || type == "output_text" || type == "text" ||
                       type == "summary_text" || type == "reasoning_text" || type == "refusal";
    if (!known) {
      return make_error(
          400, "unsupported_content",
          "content of type '" + type + "' is not supported by this model: only text is",
          here + "/type");
    }
    TANDEM_TRY(some, string_member(part, type == "refusal" ? "refusal" : "text", here));
    if (i > 0) text += '\n';
    text += some;
  }
  return text;
}

JsonValue arguments_of(const std::string& text) {
  auto parsed = parse_json(text.empty() ? "{}" : text);
  if (parsed && parsed->is_object()) return std::move(*parsed);
  return JsonValue::string(text);
}

Status read_message(const JsonValue& one, const std::string& at, ConversationBuilder& to) {
  TANDEM_TRY(role, string_member(one, "role", at));
  TANDEM_TRY(text, content_text(one.find("content"), at + "/content"));
  if (role == "assistant") {
    to.say(text);
  } else if (role == "user" || role == "system" || role == "developer") {
    to.add(role.c_str(), text);
  } else {
    return invalid_request("a message's role must be user, assistant, system or developer",
                           at + "/role");
  }
  return {};
}

// Reasoning comes back in the open or sealed; its summary is not what the model thought.
Status read_thought(const JsonValue& one, const std::string& at, ConversationBuilder& to) {
  TANDEM_TRY(text, content_text(one.find("content"), at + "/content"));
  if (text.empty()) {
    const auto sealed = open_reasoning(text_of(one, "encrypted_content"));
    if (!sealed) {
      return make_error(400, "invalid_encrypted_content",
                        "the encrypted content was changed on its way: leave the item out, or send "
                        "its content",
                        at + "/encrypted_content");
    }
    text = *sealed;
  }
  if (!text.empty()) to.think(text);
  return {};
}

Status add_tools(const JsonValue& value, const std::string& pointer, Draft& draft);

Status read_item(const JsonValue& one, const std::string& at, Draft& draft,
                 ConversationBuilder& to) {
  if (!one.is_object()) return invalid_request("an input item must be an object", at);
  TANDEM_CHECK(check_keys(one, at));
  const std::string type = text_of(one, "type");
  if (type == "message" || (type.empty() && one.find("role") != nullptr))
    return read_message(one, at, to);
  if (type == "reasoning") return read_thought(one, at, to);
  if (type == "function_call") {
    TANDEM_TRY(id, string_member(one, "call_id", at));
    TANDEM_TRY(name, string_member(one, "name", at));
    to.call(id, qualified_name(text_of(one, "namespace"), name),
            arguments_of(text_of(one, "arguments")));
  } else if (type == "custom_tool_call") {
    TANDEM_TRY(id, string_member(one, "call_id", at));
    TANDEM_TRY(name, string_member(one, "name", at));
    to.call(id, qualified_name(text_of(one, "namespace"), name),
            custom_arguments(text_of(one, "input")));
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    TANDEM_TRY(id, string_member(one, "call_id", at));
    TANDEM_TRY(text, content_text(one.find("output"), at + "/output"));
    to.result(id, text);
  } else if (type == "additional_tools") {
    const JsonValue* tools = one.find("tools");
    if (tools != nullptr) return add_tools(*tools, at + "/tools", draft);
  } else if (type == "item_reference") {
    return make_error(400, "unsupported_parameter",
                      "items are not kept by their ids: send the item itself, or use "
                      "'previous_response_id'",
                      at);
  }
  return {};
}

Status add_function(const JsonValue& tool, const std::string& space, const std::string& at,
                    Draft& draft) {
  TANDEM_TRY(name, string_member(tool, "name", at));
  const JsonValue* parameters = tool.find("parameters");
  if (parameters != nullptr && !parameters->is_null() && !parameters->is_object())
    return make_error(400, "invalid_type", "'parameters' must be an object", at + "/parameters");
  const std::string told = qualified_name(space, name);
  draft.request.tools.push_back(
      function_tool(told, tool.find("description"), parameters, tool.find("strict")));
  draft.request.tool_pointers.push_back(at + "/parameters");
  if (!space.empty()) draft.request.tool_names.push_back({told, space, name});
  return {};
}

Status add_tool(const JsonValue& tool, const std::string& space, const std::string& at,
                Draft& draft) {
  if (!tool.is_object()) return make_error(400, "invalid_type", "a tool must be an object", at);
  if (draft.request.tools.items().size() >= kMaxTools)
    return make_error(400, "array_above_max_length", "there are more than 4096 tools", at);
  const std::string type = text_of(tool, "type");
  if (type == "function") return add_function(tool, space, at, draft);
  if (type == "custom") return add_custom_tool(tool, space, at, draft);
  if (type != "namespace" || !space.empty()) return {};
  const JsonValue* inner = tool.find("tools");
  if (inner == nullptr) return {};
  TANDEM_TRY(name, string_member(tool, "name", at));
  for (size_t i = 0; i < inner->items().size(); ++i)
    TANDEM_CHECK(add_tool(inner->items()[i], name, pointer_to(at + "/tools", i), draft));
  return {};
}

Status add_tools(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array())
    return make_error(400, "invalid_type", "'tools' must be an array", pointer);
  if (value.items().size() > kMaxTools)
    return make_error(400, "array_above_max_length", "there are more than 4096 tools", pointer);
  if (draft.request.tools.is_null()) draft.request.tools = JsonValue::array();
  for (size_t i = 0; i < value.items().size(); ++i)
    TANDEM_CHECK(add_tool(value.items()[i], "", pointer_to(pointer, i), draft));
  return {};
}

}  // namespace

std::string seal_reasoning(std::string_view text) {
  return std::string(kSealed) + check_digits(text) + "." + text::encode_base64(text);
}

std::optional<std::string> open_reasoning(std::string_view sealed) {
  if (!sealed.starts_with(kSealed)) return std::string();  // another server's
  sealed.remove_prefix(kSealed.size());
  const size_t dot = sealed.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  auto bytes = text::decode_base64(sealed.substr(dot + 1));
  if (!bytes || !is_valid_utf8(*bytes) || check_digits(*bytes) != sealed.substr(0, dot))
    return std::nullopt;
  return bytes;
}

Status read_input(const JsonValue& value, const std::string& pointer, Draft& draft) {
  ConversationBuilder to;
  if (draft.earlier != nullptr) {
    for (size_t i = 0; i < draft.earlier->items().size(); ++i)
      TANDEM_CHECK(
          read_item(draft.earlier->items()[i], pointer_to("/previous_response_id", i), draft, to));
  }
  if (value.is_string()) {
    to.add("user", value.as_string());
  } else if (!value.is_array()) {
    return invalid_request("'input' must be a string or an array of items", pointer);
  } else if (value.items().size() > kMaxItems) {
    return invalid_request("there are more than 65536 input items", pointer);
  }
  for (size_t i = 0; i < value.items().size(); ++i)
    TANDEM_CHECK(read_item(value.items()[i], pointer_to(pointer, i), draft, to));
  draft.request.messages = to.take();
  return {};
}

Status read_response_tools(const JsonValue& value, const std::string& pointer, Draft& draft) {
  return add_tools(value, pointer, draft);
}

Status read_response_tool_choice(const JsonValue& value, const std::string& pointer, Draft& draft) {
  ApiRequest& request = draft.request;
  if (read_choice_word(value, draft)) return {};
  if (value.is_string()) {
    return make_error(400, "invalid_value", "'tool_choice' must be auto, none, required or a tool",
                      pointer);
  }
  if (!value.is_object())
    return make_error(400, "invalid_type", "'tool_choice' must be a string or an object", pointer);
  TANDEM_TRY(type, string_member(value, "type", pointer));
  if (type == "allowed_tools") {
    // Tools that a vendor runs itself are none of ours.
    const auto name_of = [](const JsonValue& tool) -> std::optional<std::string> {
      const std::string kind = text_of(tool, "type");
      if (!kind.empty() && kind != "function" && kind != "custom") return std::nullopt;
      const std::string own = text_of(tool, "name");
      return own.empty() ? own : qualified_name(text_of(tool, "namespace"), own);
    };
    return read_allowed_tools(value, pointer, name_of, draft);
  }
  if (type != "function" && type != "custom")
    return make_error(400, "unsupported_parameter", "only functions and custom tools can be chosen",
                      pointer + "/type");
  TANDEM_TRY(name, string_member(value, "name", pointer));
  request.choice = ToolChoice::kNamed;
  request.chosen_tool = qualified_name(text_of(value, "namespace"), name);
  return {};
}

Status read_reasoning(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return make_error(400, "invalid_type", "'reasoning' must be an object", pointer);
  const std::string effort = text_of(value, "effort");
  if (effort.size() > 64)
    return make_error(400, "string_above_max_length", "'effort' is longer than 64 bytes",
                      pointer + "/effort");
  draft.reasoning_effort = effort;
  return {};
}

Status read_text_options(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return make_error(400, "invalid_type", "'text' must be an object", pointer);
  const JsonValue* format = value.find("format");
  if (format == nullptr || format->is_null()) return {};
  return read_text_format(*format, pointer + "/format", draft);
}

Status read_include(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array())
    return make_error(400, "invalid_type", "'include' must be an array", pointer);
  for (const JsonValue& one : value.items()) {
    if (one.as_string() == "reasoning.encrypted_content") draft.request.sealed_reasoning = true;
  }
  return {};
}

}  // namespace tandem::api
