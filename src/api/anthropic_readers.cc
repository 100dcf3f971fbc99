#include "api/anthropic_readers.h"

#include <utility>

#include "api/content_blocks.h"
#include "api/field_readers.h"
#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxMessages = 65536;
constexpr std::string_view kBilling = "x-anthropic-billing-header";

tl::unexpected<Error> unsupported(const std::string& type, const std::string& at) {
  return make_error(400, "unsupported_content",
                    "content of type '" + type + "' is not supported by this model: only text is",
                    at + "/type");
}

Result<std::string> type_of(const JsonValue& block, const std::string& at) {
  if (!block.is_object()) return invalid_request("a content block must be an object", at);
  return string_member(block, "type", at);
}

// Text of a block that has some: text, or a document that is text.
Result<std::string> block_text(const JsonValue& block, const std::string& type,
                               const std::string& at) {
  if (type == "text") return string_member(block, "text", at);
  const JsonValue* source = type == "document" ? block.find("source") : nullptr;
  const JsonValue* kind = source == nullptr ? nullptr : source->find("type");
  if (kind != nullptr && kind->as_string() == "text") return string_member(*source, "data", at);
  return unsupported(type, at);
}

Result<std::string> result_text(const JsonValue& block, const std::string& pointer) {
  const JsonValue* content = block.find("content");
  const std::string at = pointer + "/content";
  if (content == nullptr || content->is_null()) return std::string();
  if (content->is_string()) return content->as_string();
  if (!content->is_array())
    return invalid_request("content must be a string or an array of blocks", at);
  std::string text;
  for (size_t i = 0; i < content->items().size(); ++i) {
    const JsonValue& part = content->items()[i];
    TANDEM_TRY(type, type_of(part, pointer_to(at, i)));
    if (type == "tool_reference") continue;
    TANDEM_TRY(some, block_text(part, type, pointer_to(at, i)));
    if (i > 0) text += '\n';
    text += some;
  }
  return text;
}

struct UserText {
  std::string text;
  bool any = false;
  void add(std::string_view some) {
    if (any) text += '\n';
    text += some;
    any = true;
  }
  void flush(ConversationBuilder& to, const char* role) {
    if (any) to.add(role, std::move(text));
    text.clear();
    any = false;
  }
};

// Results of tools are messages of their own, in the order they stand among the texts.
Status read_user(const JsonValue& blocks, const char* role, const std::string& at,
                 ConversationBuilder& to) {
  UserText text;
  for (size_t i = 0; i < blocks.items().size(); ++i) {
    const JsonValue& block = blocks.items()[i];
    const std::string here = pointer_to(at, i);
    TANDEM_TRY(type, type_of(block, here));
    if (type == "tool_result") {
      text.flush(to, role);
      TANDEM_TRY(id, string_member(block, "tool_use_id", here));
      TANDEM_TRY(result, result_text(block, here));
      to.result(id, result);
      continue;
    }
    TANDEM_TRY(some, block_text(block, type, here));
    text.add(some);
  }
  text.flush(to, role);
  return {};
}

Status read_assistant(const JsonValue& blocks, const std::string& at, ConversationBuilder& to) {
  for (size_t i = 0; i < blocks.items().size(); ++i) {
    const JsonValue& block = blocks.items()[i];
    const std::string here = pointer_to(at, i);
    TANDEM_TRY(type, type_of(block, here));
    if (type == "text") {
      TANDEM_TRY(text, string_member(block, "text", here));
      to.say(text);
    } else if (type == "thinking") {
      TANDEM_TRY(text, string_member(block, "thinking", here));
      if (!text.empty()) to.think(text);
    } else if (type == "tool_use") {
      TANDEM_TRY(id, string_member(block, "id", here));
      TANDEM_TRY(name, string_member(block, "name", here));
      const JsonValue* input = block.find("input");
      to.call(id, name, input == nullptr ? JsonValue::object() : *input);
    } else if (type != "redacted_thinking" && type != "server_tool_use" &&
               !type.ends_with("_tool_result")) {
      return unsupported(type, here);
    }
  }
  return {};
}

}  // namespace

Status read_anthropic_messages(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array() || value.items().empty())
    return invalid_request("'messages' must be a non-empty array", pointer);
  if (value.items().size() > kMaxMessages)
    return invalid_request("there are more than 65536 messages", pointer);
  ConversationBuilder to;
  for (size_t i = 0; i < value.items().size(); ++i) {
    const JsonValue& message = value.items()[i];
    const std::string at = pointer_to(pointer, i);
    if (!message.is_object()) return invalid_request("a message must be an object", at);
    TANDEM_CHECK(check_keys(message, at));
    TANDEM_TRY(role, string_member(message, "role", at));
    const bool assistant = role == "assistant";
    const char* name = role == "system" ? "system" : "user";
    if (!assistant && role != "user" && role != "system")
      return invalid_request("a message's role must be user, assistant or system", at + "/role");
    const JsonValue* content = message.find("content");
    if (content == nullptr || (!content->is_string() && !content->is_array()))
      return invalid_request("content must be a string or an array of blocks", at + "/content");
    if (content->is_array()) {
      TANDEM_CHECK(assistant ? read_assistant(*content, at + "/content", to)
                             : read_user(*content, name, at + "/content", to));
    } else if (assistant) {
      to.say(content->as_string());
    } else {
      to.add(name, content->as_string());
    }
  }
  draft.request.messages = to.take();
  return {};
}

Status read_anthropic_system(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (value.is_string()) {
    draft.system = value.as_string();
    return {};
  }
  if (!value.is_array())
    return invalid_request("'system' must be a string or an array of text blocks", pointer);
  bool any = false;
  for (size_t i = 0; i < value.items().size(); ++i) {
    const std::string at = pointer_to(pointer, i);
    TANDEM_TRY(type, type_of(value.items()[i], at));
    TANDEM_TRY(text, block_text(value.items()[i], type, at));
    if (text.starts_with(kBilling)) continue;
    if (any) draft.system += '\n';
    draft.system += text;
    any = true;
  }
  return {};
}

Status read_anthropic_tools(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array())
    return make_error(400, "invalid_type", "'tools' must be an array", pointer);
  if (value.items().size() > kMaxTools)
    return make_error(400, "array_above_max_length", "there are more than 4096 tools", pointer);
  JsonValue tools = JsonValue::array();
  for (size_t i = 0; i < value.items().size(); ++i) {
    const JsonValue& tool = value.items()[i];
    const std::string at = pointer_to(pointer, i);
    if (!tool.is_object()) return make_error(400, "invalid_type", "a tool must be an object", at);
    // Tools that the vendor runs itself have a type of their own and no schema.
    const JsonValue* schema = tool.find("input_schema");
    const JsonValue* type = tool.find("type");
    if (schema == nullptr && type != nullptr && type->as_string() != "custom") continue;
    TANDEM_TRY(name, string_member(tool, "name", at));
    if (schema != nullptr && !schema->is_object())
      return make_error(400, "invalid_type", "'input_schema' must be an object",
                        at + "/input_schema");
    tools.push_back(function_tool(name, tool.find("description"), schema, tool.find("strict")));
    draft.request.tool_pointers.push_back(at + "/input_schema");
    const JsonValue* eager = tool.find("eager_input_streaming");
    if (eager != nullptr && eager->as_bool()) draft.request.live_arguments = true;
  }
  if (!tools.items().empty()) draft.request.tools = std::move(tools);
  return {};
}

Status read_anthropic_tool_choice(const JsonValue& value, const std::string& pointer,
                                  Draft& draft) {
  if (!value.is_object())
    return make_error(400, "invalid_type", "'tool_choice' must be an object", pointer);
  TANDEM_TRY(type, string_member(value, "type", pointer));
  const JsonValue* alone = value.find("disable_parallel_tool_use");
  if (alone != nullptr && alone->as_bool()) draft.request.parallel_calls = false;
  if (type == "none") {
    draft.tools_off = true;
  } else if (type == "any") {
    draft.request.choice = ToolChoice::kRequired;
  } else if (type == "tool") {
    TANDEM_TRY(name, string_member(value, "name", pointer));
    draft.request.choice = ToolChoice::kNamed;
    draft.request.chosen_tool = name;
  } else if (type != "auto") {
    return make_error(400, "invalid_value", "'type' must be auto, any, tool or none",
                      pointer + "/type");
  }
  return {};
}

Status read_thinking(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return make_error(400, "invalid_type", "'thinking' must be an object", pointer);
  TANDEM_TRY(type, string_member(value, "type", pointer));
  draft.thinking = type != "disabled";
  return {};
}

Status read_output_config(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return make_error(400, "invalid_type", "'output_config' must be an object", pointer);
  const JsonValue* effort = value.find("effort");
  if (effort != nullptr && effort->is_string() && effort->as_string().size() <= 64)
    draft.reasoning_effort = effort->as_string();
  const JsonValue* format = value.find("format");
  if (format == nullptr || format->is_null()) return {};
  return read_text_format(*format, pointer + "/format", draft);
}

// Agents put a JSON text there that names the session.
Status read_anthropic_metadata(const JsonValue& value, const std::string&, Draft& draft) {
  const JsonValue* user = value.find("user_id");
  if (user == nullptr || !user->is_string()) return {};
  const auto inside = parse_json(user->as_string());
  const JsonValue* session = inside ? inside->find("session_id") : nullptr;
  const bool named = session != nullptr && session->is_string() && !session->as_string().empty();
  draft.request.user = (named ? session->as_string() : user->as_string()).substr(0, 1024);
  return {};
}

Status read_stop_sequences(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array())
    return make_error(400, "invalid_type", "'stop_sequences' must be an array of strings", pointer);
  return read_stops(value, pointer, draft);
}

}  // namespace tandem::api
