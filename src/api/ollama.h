// Ollama's dialect, by translation: its request bodies become bodies of the OpenAI dialect, and the
// OpenAI reply becomes Ollama's lines of JSON. So everything behind it (checks, routing, usage) is
// one code path. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// An OpenAI request made of /api/chat's or /api/generate's.
struct OllamaRequest {
  bool chat = true;      // /api/chat: replies have `message`; else `response`
  bool messages = true;  // the OpenAI body is one of /v1/chat/completions, else /v1/completions
  bool stream = true;    // Ollama streams unless told not to
  std::string model;     // as the client named it
  JsonValue body;        // with usage asked for when streamed
};
// Known options are translated (num_predict, repeat_penalty, ...), unknown ones ignored. What
// cannot be served (images, format, suffix, raw context) is a 400. Errors carry the pointer of
// Ollama's field.
Result<OllamaRequest> parse_ollama(bool chat, const JsonValue& body);

// {"error": sentence} of an OpenAI error object.
std::string ollama_error(std::string_view openai_body);

// Replies. `created`: RFC 3339. Durations are nanoseconds.
class OllamaReply {
 public:
  OllamaReply(const OllamaRequest& request, std::string created);

  // The `data` of one event of the stream: zero or more lines. [DONE] gives the last line.
  std::string line(std::string_view data, int64_t elapsed);
  // A whole OpenAI answer.
  std::string whole(std::string_view openai_body, int64_t elapsed) const;

 private:
  JsonValue part(const std::string& text, bool done) const;
  JsonValue last(const std::string& text, const JsonValue* usage, int64_t elapsed) const;

  bool chat_;
  std::string model_;
  std::string created_;
  std::string reason_ = "stop";
  JsonValue usage_;
  bool failed_ = false;
};

// {"models": [...]} and {"version": ...}.
std::string ollama_tags(const std::vector<std::string>& ids, const std::string& modified);
std::string ollama_version();

}  // namespace tandem::api
