// The OpenAI dialect: /v1/chat/completions and /v1/completions bodies to plain requests, token
// events to reply bytes. Pure: no sockets, no clock. Values are plain; nothing here is shared
// between threads by itself.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/envelope.h"
#include "base/json_value.h"
#include "base/result.h"
#include "protocol/request.h"
#include "protocol/token_event.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::api {

enum class Endpoint { kChatCompletions, kCompletions };

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string model = "default";
  // Chat. Contents are strings here: text parts are joined with "\n", a missing assistant content
  // is empty, tool-call arguments are objects when they parse as one.
  JsonValue messages;  // array
  JsonValue tools;     // array or null
  bool add_generation_prompt = true;
  JsonValue template_arguments;  // chat_template_kwargs, an object or null
  // Completions: one of the two.
  std::string prompt;
  std::optional<std::vector<int32_t>> prompt_token_ids;

  bool stream = false;
  bool include_usage = false;
  protocol::SamplingParams sampling;  // max_tokens 0: as many as fit
  std::string user;                   // affinity hints, empty when absent
  std::string prompt_cache_key;
  std::optional<TandemEnvelope> envelope;
};

// Unknown fields are ignored; a known one that is not supported is refused only when it would
// change the answer. `trust_envelope`: the caller is an authenticated router; otherwise `tandem` is
// ignored. Errors: 400 with the JSON pointer of the field.
Result<ApiRequest> parse_request(Endpoint endpoint, const JsonValue& body,
                                 bool trust_envelope = false);

// The prompt's tokens: the envelope's or the client's ids (checked against the vocabulary), else
// rendered and encoded. `chat_template` may be null when the model has none: chat is then a 400.
// Never empty.
Result<std::vector<int32_t>> render_prompt(const ApiRequest& request,
                                           const text::Tokenizer& tokenizer,
                                           const text::ChatTemplate* chat_template);

// 400 "context_length_exceeded" when prompt and `max_tokens` (0: at least one) do not fit; the
// message has "maximum context length is N tokens" and the other numbers. Nothing is ever
// truncated.
Status check_context(int64_t prompt_tokens, int64_t max_tokens, int64_t context_length);

// Renders one request's events. Streaming: send begin(), then render(event) for each event; the
// last event (finish or error) also gives the usage chunk and [DONE]. Whole: collect(event) for
// each, then body().
class ResponseRenderer {
 public:
  // `id`: "chatcmpl-..." or "cmpl-..."; `created`: Unix seconds; `model`: the served name.
  ResponseRenderer(const ApiRequest& request, std::string id, int64_t created, std::string model);

  std::string begin();  // chat: the role chunk; completions: nothing
  std::string render(const protocol::TokenEvent& event);  // zero or more whole SSE frames
  // True once a finish or an error was rendered or collected; later events are ignored.
  bool finished() const { return finished_; }
  bool failed() const { return error_.has_value(); }

  void collect(const protocol::TokenEvent& event);
  // The JSON object, or the sequence's error (also when no finish was collected).
  Result<std::string> body() const;

 private:
  JsonValue chunk(JsonValue choices) const;
  std::string finish_frames(const protocol::FinishEvent& finish);
  std::string error_frames(Error error);

  Endpoint endpoint_;
  bool include_usage_;
  bool report_tokens_;
  std::string id_;
  int64_t created_;
  std::string model_;
  bool finished_ = false;
  std::string text_;
  std::optional<protocol::FinishEvent> finish_;
  std::optional<Error> error_;
};

JsonValue usage_json(const protocol::Usage& usage);
// One row of /v1/models.
struct ModelEntry {
  std::string id;
  int64_t context_length = 0;  // max_model_len when positive
  std::string parent;          // of an adapter: its base model
};
// {"object": "list", "data": [...]}
std::string models_body(std::span<const ModelEntry> models, int64_t created);

// POST /tokenize: {"prompt": text} or {"messages": [...], "tools"?, "add_generation_prompt"?}.
// The result goes through render_prompt; for a plain prompt "add_special_tokens": false leaves out
// BOS.
struct TokenizeRequest {
  ApiRequest request;
  bool add_special_tokens = true;
};
Result<TokenizeRequest> parse_tokenize_request(const JsonValue& body);
Result<std::vector<int32_t>> tokenize(const TokenizeRequest& request,
                                      const text::Tokenizer& tokenizer,
                                      const text::ChatTemplate* chat_template);
// {"tokens", "count", "max_model_len"}
std::string tokenize_body(std::span<const int32_t> tokens, int64_t context_length);
// POST /detokenize: {"tokens": [...]} -> {"prompt": text}
Result<std::vector<int32_t>> parse_detokenize_request(const JsonValue& body,
                                                      const text::Tokenizer& tokenizer);
std::string detokenize_body(std::string_view text);

}  // namespace tandem::api
