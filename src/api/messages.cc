#include "api/messages.h"

#include <algorithm>
#include <array>

#include "api/custom_tools.h"
#include "api/field_table.h"
#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxMessages = 65536;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

Result<std::string> part_text(const JsonValue& part, const std::string& pointer) {
  if (part.is_string()) return part.as_string();
  if (!part.is_object()) return invalid_request("a content part must be an object", pointer);
  const JsonValue* type = part.find("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_request("a content part needs a 'type'", pointer + "/type");
  }
  const std::string& name = type->as_string();
  const bool refusal = name == "refusal";
  if (name != "text" && name != "input_text" && name != "output_text" && !refusal) {
    return make_error(400, "unsupported_content",
                      "content of type '" + name + "' is not supported by this model: only text is",
                      pointer + "/type");
  }
  const char* key = refusal ? "refusal" : "text";
  const JsonValue* text = part.find(key);
  if (text == nullptr || !text->is_string()) {
    return invalid_request("a text part needs a string", pointer_to(pointer, key));
  }
  return text->as_string();
}

Result<std::string> joined_parts(const JsonValue& parts, const std::string& pointer) {
  std::string text;
  for (size_t i = 0; i < parts.items().size(); ++i) {
    TANDEM_TRY(part, part_text(parts.items()[i], pointer_to(pointer, i)));
    if (i > 0) text += '\n';
    text += part;
  }
  return text;
}

Status normalize_content(JsonValue& message, const std::string& role, const std::string& pointer) {
  const std::string at = pointer + "/content";
  const JsonValue* content = message.find("content");
  if (content == nullptr || content->is_null()) {
    if (role != "assistant")
      return invalid_request("a message of role '" + role + "' needs content", at);
    message.set("content", JsonValue::string(""));
    return {};
  }
  if (content->is_string()) return {};
  if (!content->is_array())
    return invalid_request("content must be a string or an array of parts", at);
  TANDEM_TRY(text, joined_parts(*content, at));
  message.set("content", JsonValue::string(std::move(text)));
  return {};
}

Status normalize_calls(JsonValue& message, const std::string& pointer) {
  JsonValue* calls = message.find("tool_calls");
  if (calls == nullptr) return {};
  if (calls->is_null()) {
    message.erase("tool_calls");
    return {};
  }
  if (!calls->is_array())
    return invalid_request("tool_calls must be an array", pointer + "/tool_calls");
  for (size_t i = 0; i < calls->items().size(); ++i) {
    const std::string at = pointer_to(pointer + "/tool_calls", i);
    JsonValue& call = calls->items()[i];
    if (const JsonValue* custom = call.find("custom")) {
      TANDEM_TRY(name, string_member(*custom, "name", at + "/custom"));
      TANDEM_TRY(input, string_member(*custom, "input", at + "/custom"));
      call.set("type", JsonValue::string("function"));
      call.set("function", JsonValue::object({{"name", JsonValue::string(name)},
                                              {"arguments", custom_arguments(input)}}));
      call.erase("custom");
      continue;
    }
    JsonValue* function = call.find("function");
    if (function == nullptr) continue;  // other kinds of calls: the template's business
    JsonValue* arguments = function->find("arguments");
    if (!function->is_object() || arguments == nullptr) {
      return invalid_request("a tool call needs function.arguments", at + "/function");
    }
    if (!arguments->is_string()) continue;
    // Clients send arguments re-serialized; templates render them in one canonical way from the
    // object.
    const std::string text = arguments->as_string().empty() ? "{}" : arguments->as_string();
    if (Result<JsonValue> parsed = parse_json(text); parsed && parsed->is_object())
      *arguments = std::move(*parsed);
  }
  return {};
}

}  // namespace

Result<JsonValue> normalize_messages(const JsonValue& messages, const std::string& pointer) {
  if (!messages.is_array() || messages.items().empty()) {
    return invalid_request("'messages' must be a non-empty array", pointer);
  }
  if (messages.items().size() > kMaxMessages) {
    return invalid_request("there are more than " + std::to_string(kMaxMessages) + " messages",
                           pointer);
  }
  JsonValue out = messages;
  for (size_t i = 0; i < out.items().size(); ++i) {
    JsonValue& message = out.items()[i];
    const std::string at = pointer_to(pointer, i);
    if (!message.is_object()) return invalid_request("a message must be an object", at);
    TANDEM_CHECK(check_keys(message, at));
    const JsonValue* role = message.find("role");
    if (role == nullptr || !role->is_string() ||
        std::find(kRoles.begin(), kRoles.end(), role->as_string()) == kRoles.end()) {
      return invalid_request("a message's role must be system, developer, user, assistant or tool",
                             at + "/role");
    }
    const std::string name = role->as_string();
    TANDEM_CHECK(normalize_content(message, name, at));
    TANDEM_CHECK(normalize_calls(message, at));
    // Clients call it either way; templates know one.
    if (const JsonValue* reasoning = message.find("reasoning");
        reasoning != nullptr && reasoning->is_string() &&
        message.find("reasoning_content") == nullptr)
      message.set("reasoning_content", *reasoning);
  }
  return out;
}

}  // namespace tandem::api
