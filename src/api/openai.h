// The OpenAI dialect: request bodies to plain requests, token events to reply bytes. Pure: no
// sockets, no clock. Values are plain; nothing here is shared between threads by itself.
//
// What a body may hold is said once, in the tables of request_tables.cc.
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
#include "protocol/grammar_spec.h"
#include "protocol/request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::api {

enum class Endpoint {
  kChatCompletions,
  kCompletions,
  kEmbeddings,
  kTokenize,
  kDetokenize,
  kResponses,    // OpenAI's newer dialect
  kInputTokens,  // a body of it, only counted
  kMessages,     // Anthropic's
  kCountTokens,  // a body of it, only counted
};
// Whether a body of it is a conversation, whatever its dialect.
constexpr bool is_conversation(Endpoint endpoint) {
  return endpoint != Endpoint::kCompletions && endpoint != Endpoint::kEmbeddings &&
         endpoint != Endpoint::kTokenize && endpoint != Endpoint::kDetokenize;
}
constexpr bool only_counts(Endpoint endpoint) {
  return endpoint == Endpoint::kInputTokens || endpoint == Endpoint::kCountTokens;
}

enum class ToolChoice : uint8_t { kAuto, kRequired, kNamed };

// A tool that the model is told of under another name than the client's.
struct ToolName {
  std::string told;
  std::string space;  // its namespace; empty: none
  std::string name;
  bool custom = false;  // takes a text instead of arguments
  // Of a custom tool's text: "lark", "regex" or nothing; where the definition stands in the body.
  std::string syntax = {};
  std::string definition = {};
  std::string pointer = {};
};

// What the client wants the text of the answer to be.
struct AnswerFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex, kChoice, kGbnf, kLark };
  Kind kind = Kind::kText;
  JsonValue schema = {};  // kJsonSchema; kChoice: the texts
  bool strict = false;
  std::string pointer = {};     // of the schema, or what there is of the others, in the body
  std::string definition = {};  // kRegex, kGbnf, kLark
};

// A prompt that is not a conversation.
struct Prompt {
  std::string text;
  std::optional<std::vector<int32_t>> tokens;  // the client's own ids; then `text` is empty
};

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string model = "default";
  // Chat (and /tokenize with messages). Contents are strings here: text parts are joined with "\n",
  // a missing assistant content is empty, tool-call arguments are objects when they parse as one.
  JsonValue messages;  // array, or null: not a chat
  JsonValue tools;     // array or null
  ToolChoice choice = ToolChoice::kAuto;
  std::string chosen_tool;  // kNamed
  // Those that may be called, never an empty list; absent: all.
  std::optional<std::vector<std::string>> allowed_tools;
  std::vector<std::string> tool_pointers;  // of each tool's parameters in the body
  std::vector<ToolName> tool_names;        // of those that are told otherwise
  AnswerFormat format;
  bool parallel_calls = true;   // false: at most one call in an answer
  bool live_arguments = false;  // a call's arguments are streamed before the call is complete
  bool add_generation_prompt = true;
  JsonValue template_arguments;  // chat_template_kwargs, an object or null
  // Completions, embeddings (at least one), /tokenize and /detokenize (exactly one).
  std::vector<Prompt> prompts;
  bool echo = false;

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  protocol::SamplingParams sampling;             // max_tokens 0: as many as fit
  std::optional<protocol::GrammarSpec> grammar;  // of the answer's text
  std::string user;                              // affinity hints, empty when absent
  std::string prompt_cache_key;
  std::string cache_salt;  // narrows what this request may share; empty: the common cache
  // Embeddings.
  bool base64 = false;
  std::optional<protocol::Pooling> pooling;  // absent: the model's
  std::optional<int64_t> dimensions;
  // /tokenize of a prompt: put the begin-of-sequence token first when the model wants one.
  bool add_special_tokens = true;

  // Of the Responses dialect: what its reply repeats; the response that this one goes on from;
  // whether this one may be gone on from; whether reasoning is told sealed too.
  JsonValue echo_fields;
  std::string previous_response_id;
  bool store = true;
  bool sealed_reasoning = false;

  std::optional<TandemEnvelope> envelope;
};

// Unknown fields are ignored; a known one that is not supported is refused only when it would
// change the answer. `trust_envelope`: the caller is an authenticated router; otherwise `tandem` is
// ignored. Errors: 400 with the JSON pointer of the field.
// `earlier`: of a Responses body, the items of the conversation that it goes on from (an array, or
// null: none are known here).
Result<ApiRequest> parse_request(Endpoint endpoint, const JsonValue& body,
                                 bool trust_envelope = false, const JsonValue* earlier = nullptr);

// The tokens of every prompt (a chat has one): the envelope's or the client's ids, else rendered
// and encoded. `chat_template` may be null when the model has none: chat is then a 400. No prompt
// is empty. Also checks every token id of the request (logit_bias, stop_token_ids) against the
// vocabulary, and that the prompts' logprobs are not too many.
Result<std::vector<std::vector<int32_t>>> render_prompts(const ApiRequest& request,
                                                         const text::Tokenizer& tokenizer,
                                                         const text::ChatTemplate* chat_template);

// 400 "context_length_exceeded" when a prompt and what is generated (`sampling.max_tokens`, at
// least one unless nothing is) do not fit; the message has "maximum context length is N tokens" and
// the other numbers. Nothing is ever truncated.
Status check_context(int64_t prompt_tokens, const ApiRequest& request, int64_t context_length);

// Whether one worker must do the whole request: several prompts, or results that come from the
// prompt's own rows.
bool needs_one_worker(const ApiRequest& request);

// One row of /v1/models.
struct ModelEntry {
  std::string id;
  int64_t context_length = 0;  // max_model_len when positive
  std::string parent;          // of an adapter: its base model
};
// {"object": "list", "data": [...]}
std::string models_body(std::span<const ModelEntry> models, int64_t created);
std::string model_body(const ModelEntry& model, int64_t created);
Error model_not_found(const std::string& name);

// POST /tokenize: {"prompt": text} or {"messages": [...], "tools"?, "add_generation_prompt"?}.
// For a plain prompt "add_special_tokens": false leaves out BOS. An empty prompt has no tokens.
Result<std::vector<int32_t>> tokenize(const ApiRequest& request, const text::Tokenizer& tokenizer,
                                      const text::ChatTemplate* chat_template);
// {"input_tokens"}: the reply of the endpoints that only count.
std::string count_body(Endpoint endpoint, int64_t tokens);
// {"tokens", "count", "max_model_len"}
std::string tokenize_body(std::span<const int32_t> tokens, int64_t context_length);
// POST /detokenize: {"tokens": [...]} -> {"prompt": text}
Result<std::string> detokenize(const ApiRequest& request, const text::Tokenizer& tokenizer);
std::string detokenize_body(std::string_view text);

}  // namespace tandem::api
