#include "api/content_blocks.h"

#include <utility>

namespace tandem::api {

namespace {

JsonValue message(const char* role, std::string text) {
  return JsonValue::object(
      {{"role", JsonValue::string(role)}, {"content", JsonValue::string(std::move(text))}});
}

}  // namespace

void ConversationBuilder::close() {
  if (!std::exchange(open_, false)) return;
  JsonValue made = message("assistant", std::exchange(text_, {}));
  if (!reasoning_.empty())
    made.set("reasoning_content", JsonValue::string(std::exchange(reasoning_, {})));
  if (!calls_.empty()) made.set("tool_calls", JsonValue::array(std::exchange(calls_, {})));
  said_ = false;
  messages_.push_back(std::move(made));
}

void ConversationBuilder::add(const char* role, std::string text) {
  close();
  messages_.push_back(message(role, std::move(text)));
}

void ConversationBuilder::say(std::string_view text) {
  // Text after a call begins a message of its own: templates write text first.
  if (open_ && !calls_.empty()) close();
  open_ = true;
  if (said_) text_ += '\n';
  text_ += text;
  said_ = true;
}

void ConversationBuilder::think(std::string_view text) {
  if (open_ && (!calls_.empty() || said_)) close();
  open_ = true;
  if (!reasoning_.empty()) reasoning_ += '\n';
  reasoning_ += text;
}

void ConversationBuilder::call(std::string id, std::string name, JsonValue arguments) {
  open_ = true;
  JsonValue function = JsonValue::object({{"name", JsonValue::string(std::move(name))}});
  function.set("arguments", std::move(arguments));
  calls_.push_back(JsonValue::object({{"id", JsonValue::string(std::move(id))},
                                      {"type", JsonValue::string("function")},
                                      {"function", std::move(function)}}));
}

void ConversationBuilder::result(std::string id, std::string text) {
  close();
  JsonValue made = message("tool", std::move(text));
  made.set("tool_call_id", JsonValue::string(std::move(id)));
  messages_.push_back(std::move(made));
}

JsonValue ConversationBuilder::take() {
  close();
  return JsonValue::array(std::exchange(messages_, {}));
}

JsonValue alternating(const JsonValue& messages) {
  JsonValue out = JsonValue::array();
  for (JsonValue one : messages.items()) {
    std::string role = one.find("role")->as_string();
    const bool system = role == "system" || role == "developer";
    if (system && !out.items().empty()) {
      role = "user";
      one.set("role", JsonValue::string(role));
    }
    JsonValue* last = out.items().empty() ? nullptr : &out.items().back();
    const JsonValue* before = last == nullptr ? nullptr : last->find("role");
    if (before != nullptr && role == "user" && before->as_string() == "user") {
      JsonValue* text = last->find("content");
      *text = JsonValue::string(text->as_string() + "\n\n" + one.find("content")->as_string());
      continue;
    }
    out.push_back(std::move(one));
  }
  return out;
}

JsonValue function_tool(const std::string& name, const JsonValue* description,
                        const JsonValue* parameters, const JsonValue* strict) {
  JsonValue function = JsonValue::object({{"name", JsonValue::string(name)}});
  if (description != nullptr && description->is_string()) function.set("description", *description);
  if (parameters != nullptr && parameters->is_object()) {
    function.set("parameters", *parameters);
  } else {
    function.set("parameters", JsonValue::object({{"type", JsonValue::string("object")},
                                                  {"properties", JsonValue::object()}}));
  }
  if (strict != nullptr && strict->is_bool() && strict->as_bool()) function.set("strict", *strict);
  return JsonValue::object(
      {{"type", JsonValue::string("function")}, {"function", std::move(function)}});
}

}  // namespace tandem::api
