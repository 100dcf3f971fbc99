// Token events to the reply bytes of the OpenAI dialect. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/logprobs.h"
#include "api/openai.h"
#include "api/reply_reader.h"
#include "api/reply_renderer.h"
#include "base/json_value.h"
#include "base/result.h"
#include "protocol/token_event.h"
#include "text/tokenizer.h"

namespace tandem::api {

// What every chunk of one answer repeats, and what rendering needs to know of the model.
struct ReplyContext {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;                           // the served name
  std::string fingerprint;                     // changes with the weights and the numeric path
  std::vector<int64_t> prompt_tokens;          // of each prompt
  const text::Tokenizer* tokenizer = nullptr;  // outlives the renderer
  std::vector<ReplyReading> reading = {};      // of each prompt; chat only
  JsonValue notes = {};                        // reply_notes(), or null: none
};

// What was approximated of what the client asked for, as the member "tandem_notes" of the reply: at
// most 16 sentences of at most 400 bytes each, the last one saying how many more there are.
JsonValue reply_notes(const std::vector<std::string>& notes);

// Renders one request's events, whatever number of prompts and choices it has: choice c of prompt p
// has the index p * n + c. Streaming: send begin(), then render(p, event) for each event; the one
// that ends the request also gives the usage chunk and [DONE]. Whole: collect(p, event) for each,
// then body().
class ResponseRenderer final : public ReplyRenderer {
 public:
  ResponseRenderer(const ApiRequest& request, ReplyContext context);

  // Chat: a role chunk for each choice; completions: the prompt's text when it is echoed without
  // logprobs.
  std::string begin() override;
  // Zero or more whole SSE frames.
  std::string render(size_t prompt, const protocol::TokenEvent& event) override;
  // True once every choice has finished, or an error came; later events are ignored.
  bool finished() const override { return open_ == 0 || error_.has_value(); }
  bool failed() const override { return error_.has_value(); }

  // Logprobs beyond some 48 MiB of JSON end the request with answer_too_large().
  void collect(size_t prompt, const protocol::TokenEvent& event) override;
  // The JSON object, or the request's error (also when a finish is missing).
  Result<std::string> body() const override;

 private:
  struct Choice {
    std::string text;         // whole answers only
    std::string reasoning;    // whole answers only
    JsonValue::Array calls;   // whole answers only
    std::string custom_text;  // of an open call of a custom tool: its arguments
    bool in_custom = false;
    LogprobLists logprobs;                // whole answers only
    std::unique_ptr<ReplyReader> reader;  // chat only
    int64_t characters = 0;               // of the text so far
    int64_t generated = 0;                // tokens so far
    std::optional<protocol::FinishEvent> finish;
  };

  Choice& choice(size_t prompt, int32_t index);
  void hold(size_t chances);
  bool take_finish(size_t prompt, const protocol::FinishEvent& finish);
  std::string echo_text(size_t prompt) const;
  // What chunks and whole answers begin with, choices included.
  JsonValue envelope_of(std::string_view chat_object, JsonValue choices) const;
  JsonValue chunk(JsonValue choices);
  JsonValue choice_json(size_t index, JsonValue::Member content, JsonValue logprobs) const;
  JsonValue::Member text_member(const std::string& text) const;
  JsonValue stop_reason(const protocol::FinishEvent& finish) const;
  JsonValue logprobs_json(LogprobLists lists) const;
  std::string text_frame(size_t index, const std::string& text, JsonValue logprobs);
  std::string delta_frame(size_t index, JsonValue delta, JsonValue logprobs);
  std::string event_frames(size_t index, const ReplyEvents& events, JsonValue logprobs);
  JsonValue delta_of(Choice& of, const ReplyEvent& event) const;
  void hold_events(Choice& to, ReplyEvents events);
  JsonValue message_json(const Choice& from) const;
  int32_t calls_of(const Choice& from) const;
  std::string prompt_frames(size_t prompt, const protocol::PromptEvent& event);
  std::string finish_frames(size_t prompt, const protocol::FinishEvent& finish);
  std::string error_frames(Error error);
  protocol::Usage total_usage() const;
  protocol::Usage usage_so_far() const;
  int64_t reasoning_tokens() const;
  JsonValue report() const;

  const ApiRequest request_;
  const ReplyContext context_;
  const bool chat_;
  const size_t n_;
  std::vector<Choice> choices_;
  size_t open_;
  bool told_notes_ = false;  // with the first chunk
  size_t held_bytes_ = 0;    // of logprobs, whole answers only
  std::optional<Error> error_;
};

// The other dialects' (messages_reply.cc, responses_reply.cc).
std::unique_ptr<ReplyRenderer> make_messages_renderer(const ApiRequest& request,
                                                      ReplyContext context);
std::unique_ptr<ReplyRenderer> make_responses_renderer(const ApiRequest& request,
                                                       ReplyContext context);

JsonValue usage_json(const protocol::Usage& usage, int64_t reasoning_tokens = 0);

// 400: an answer that is not streamed outgrew what is held of one.
Error answer_too_large();

}  // namespace tandem::api
