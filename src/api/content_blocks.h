// Conversations of the dialects that agents speak (Anthropic's Messages, OpenAI's Responses) in the
// chat form that templates know: system, user, assistant with reasoning and calls, tool. Pure.
#pragma once

#include <string>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// Builds a chat conversation part by part. What the assistant says, thinks and calls between two
// other messages is one message.
class ConversationBuilder {
 public:
  void add(const char* role, std::string text);  // system, developer or user
  void say(std::string_view text);               // the assistant's
  void think(std::string_view text);
  // `arguments`: an object, or whatever the client kept of a broken call.
  void call(std::string id, std::string name, JsonValue arguments);
  void result(std::string id, std::string text);
  JsonValue take();  // an array

 private:
  void close();

  JsonValue::Array messages_;
  bool open_ = false;  // an assistant's message
  bool said_ = false;
  std::string text_;
  std::string reasoning_;
  JsonValue::Array calls_;
};

// A conversation for templates that take only user and assistant in turn, and system first:
// later system messages become the user's, the user's in a row become one.
JsonValue alternating(const JsonValue& messages);

// {"type": "function", "function": {...}}; a null member is left out.
JsonValue function_tool(const std::string& name, const JsonValue* description,
                        const JsonValue* parameters, const JsonValue* strict);

}  // namespace tandem::api
