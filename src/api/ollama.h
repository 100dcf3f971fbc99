// Ollama's dialect, by translation: its request bodies become bodies of the OpenAI dialect, and the
// OpenAI reply becomes Ollama's lines of JSON. So everything behind it (checks, routing, usage) is
// one code path. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai.h"
#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// /api/chat, /api/generate, /api/embed and the older /api/embeddings (one text).
enum class OllamaRoute : uint8_t { kChat, kGenerate, kEmbed, kEmbedding };

// An OpenAI request made of Ollama's.
struct OllamaRequest {
  OllamaRoute route = OllamaRoute::kChat;
  Endpoint endpoint = Endpoint::kChatCompletions;  // of the OpenAI body
  bool stream = true;                              // Ollama streams unless told not to
  bool load = false;  // without messages or prompt: only asks for the model to be ready
  std::string model;  // as the client named it
  JsonValue body;     // with usage asked for when streamed
};
// Known options are translated (num_predict, repeat_penalty, ...), unknown ones ignored; `format`
// becomes response_format, calls and their results in messages get ids. What cannot be served
// (images, suffix, template, raw context, logprobs) is a 400. Errors carry the pointer of Ollama's
// field.
Result<OllamaRequest> parse_ollama(OllamaRoute route, const JsonValue& body);

// {"error": sentence} of an OpenAI error object.
std::string ollama_error(std::string_view openai_body);

// Replies. `created`: RFC 3339. Durations are nanoseconds.
class OllamaReply {
 public:
  // A call of a tool as far as it has come; arguments as JSON text.
  struct Call {
    std::string name;
    std::string arguments;
  };

  OllamaReply(const OllamaRequest& request, std::string created);

  // The `data` of one event of the stream: zero or more lines. [DONE] gives the last line.
  std::string line(std::string_view data, int64_t elapsed);
  // A whole OpenAI answer.
  std::string whole(std::string_view openai_body, int64_t elapsed) const;
  // To a request that only loads.
  std::string loaded() const;

 private:
  JsonValue part(const std::string& text, bool done, const std::vector<Call>& calls) const;
  JsonValue last(const std::string& text, const JsonValue* usage, int64_t elapsed,
                 const std::vector<Call>& calls) const;

  std::string embeddings(const JsonValue& openai, int64_t elapsed) const;

  OllamaRoute route_;
  std::string model_;
  std::string created_;
  std::string reason_ = "stop";
  JsonValue usage_;
  std::vector<Call> calls_;  // of the stream, until the choice ends
  size_t call_bytes_ = 0;
  JsonValue notes_;  // of the stream, until a line tells them
  bool failed_ = false;
};

// {"models": [...]} and {"version": ...}.
std::string ollama_tags(const std::vector<std::string>& ids, const std::string& modified);
std::string ollama_version();

}  // namespace tandem::api
