#include "api/responses.h"

#include <algorithm>
#include <utility>

#include "api/custom_tools.h"
#include "api/fields.h"
#include "base/reply_text.h"

namespace tandem::api {

namespace {

Error aborted() { return {503, "request_aborted", "the request was aborted before it finished"}; }

JsonValue::Member role_delta() {
  return {"delta", JsonValue::object({{"role", JsonValue::string("assistant")},
                                      {"content", JsonValue::string("")},
                                      {"refusal", JsonValue()}})};
}

}  // namespace

Error answer_too_large() {
  return {400, "answer_too_large",
          "the answer is too large to be given as a whole: stream it, or ask for fewer logprobs, "
          "tokens or choices"};
}

JsonValue usage_json(const protocol::Usage& usage, int64_t reasoning_tokens) {
  JsonValue json = JsonValue::object();
  json.set("prompt_tokens", JsonValue::integer(usage.prompt_tokens));
  json.set("completion_tokens", JsonValue::integer(usage.completion_tokens));
  json.set("total_tokens",
           JsonValue::integer(int64_t{usage.prompt_tokens} + usage.completion_tokens));
  json.set("prompt_tokens_details",
           JsonValue::object({{"cached_tokens", JsonValue::integer(usage.cached_tokens)}}));
  json.set("completion_tokens_details",
           JsonValue::object({{"reasoning_tokens", JsonValue::integer(reasoning_tokens)}}));
  return json;
}

ResponseRenderer::ResponseRenderer(const ApiRequest& request, ReplyContext context)
    : request_(request),
      context_(std::move(context)),
      chat_(request.endpoint == Endpoint::kChatCompletions),
      n_(static_cast<size_t>(request.sampling.n)),
      choices_(context_.prompt_tokens.size() * n_),
      open_(choices_.size()) {
  if (!chat_) return;
  static const ReplyReading kText;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const bool known = i / n_ < context_.reading.size();
    choices_[i].reader =
        std::make_unique<ReplyReader>(known ? context_.reading[i / n_] : kText, i % n_);
  }
}

ResponseRenderer::Choice& ResponseRenderer::choice(size_t prompt, int32_t index) {
  return choices_[(prompt * n_) + static_cast<size_t>(index)];
}

std::string ResponseRenderer::echo_text(size_t prompt) const {
  const Prompt& given = request_.prompts[prompt];
  return given.tokens ? context_.tokenizer->decode(*given.tokens, true) : given.text;
}

JsonValue ResponseRenderer::envelope_of(std::string_view chat_object, JsonValue choices) const {
  JsonValue json = JsonValue::object();
  json.set("id", JsonValue::string(context_.id));
  json.set("object", JsonValue::string(std::string(chat_ ? chat_object : "text_completion")));
  json.set("created", JsonValue::integer(context_.created));
  json.set("model", JsonValue::string(context_.model));
  if (chat_) json.set("service_tier", JsonValue::string("default"));
  json.set("system_fingerprint", JsonValue::string(context_.fingerprint));
  json.set("choices", std::move(choices));
  return json;
}

JsonValue ResponseRenderer::chunk(JsonValue choices) {
  JsonValue json = envelope_of("chat.completion.chunk", std::move(choices));
  if (request_.continuous_usage) {
    json.set("usage", usage_json(usage_so_far(), reasoning_tokens()));
    json.find("usage")->erase("prompt_tokens_details");  // not known before the end
  } else if (request_.include_usage) {
    json.set("usage", JsonValue());
  }
  if (!context_.notes.is_null() && !std::exchange(told_notes_, true))
    json.set("tandem_notes", context_.notes);
  return json;
}

JsonValue ResponseRenderer::choice_json(size_t index, JsonValue::Member content,
                                        JsonValue logprobs) const {
  JsonValue made = JsonValue::object();
  made.set("index", JsonValue::integer(static_cast<int64_t>(index)));
  made.set(content.first, std::move(content.second));
  made.set("logprobs", std::move(logprobs));
  made.set("finish_reason", JsonValue());
  return made;
}

JsonValue::Member ResponseRenderer::text_member(const std::string& text) const {
  if (!chat_) return {"text", JsonValue::string(text)};
  return {"delta", JsonValue::object({{"content", JsonValue::string(text)}})};
}

// The client's own stop string or token; null for the model's end of turn.
JsonValue ResponseRenderer::stop_reason(const protocol::FinishEvent& finish) const {
  if (finish.stop_string) return JsonValue::string(*finish.stop_string);
  const auto& asked = request_.sampling.stop_token_ids;
  if (finish.stop_token && std::find(asked.begin(), asked.end(), *finish.stop_token) != asked.end())
    return JsonValue::integer(*finish.stop_token);
  return {};
}

JsonValue ResponseRenderer::logprobs_json(LogprobLists lists) const {
  if (!request_.sampling.logprobs) return {};
  JsonValue json = JsonValue::object();
  if (chat_) {
    json.set("content", std::move(lists.content));
    json.set("refusal", JsonValue());
    return json;
  }
  json.set("tokens", std::move(lists.tokens));
  json.set("token_logprobs", std::move(lists.token_logprobs));
  json.set("top_logprobs", std::move(lists.top_logprobs));
  json.set("text_offset", std::move(lists.text_offset));
  return json;
}

namespace {

void add_tokens(LogprobLists& lists, int64_t& characters, bool chat,
                const protocol::TextEvent& event, const text::Tokenizer* tokenizer) {
  for (const protocol::TokenLogprobs& token : event.logprobs) {
    if (chat) {
      lists.add_chat(token);
      continue;
    }
    lists.add_completion(token, characters);
    characters += characters_of(token.chosen.token, token.chosen.bytes, tokenizer);
  }
}

void add_prompt(LogprobLists& lists, int64_t& characters, const protocol::PromptEvent& event,
                const text::Tokenizer* tokenizer) {
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const std::string_view bytes = tokenizer->token_bytes(event.tokens[i]);
    if (i < event.logprobs.size() && event.logprobs[i]) {
      lists.add_completion(*event.logprobs[i], characters);
    } else {
      lists.add_unscored(bytes, characters);
    }
    characters += characters_of(event.tokens[i], bytes, tokenizer);
  }
}

}  // namespace

std::string ResponseRenderer::text_frame(size_t index, const std::string& text,
                                         JsonValue logprobs) {
  return sse_frame(
      chunk(JsonValue::array({choice_json(index, text_member(text), std::move(logprobs))})));
}

std::string ResponseRenderer::delta_frame(size_t index, JsonValue delta, JsonValue logprobs) {
  return sse_frame(chunk(
      JsonValue::array({choice_json(index, {"delta", std::move(delta)}, std::move(logprobs))})));
}

namespace {

JsonValue call_delta(int32_t index, const CallStart* start, const std::string& arguments) {
  JsonValue call = JsonValue::object({{"index", JsonValue::integer(index)}});
  JsonValue function = JsonValue::object();
  if (start != nullptr) {
    call.set("id", JsonValue::string(start->id));
    call.set("type", JsonValue::string("function"));
    function.set("name", JsonValue::string(start->name));
  }
  function.set("arguments", JsonValue::string(arguments));
  call.set("function", std::move(function));
  return JsonValue::object({{"tool_calls", JsonValue::array({std::move(call)})}});
}

JsonValue custom_delta(int32_t index, const CallStart* start, std::string input) {
  JsonValue call = JsonValue::object({{"index", JsonValue::integer(index)}});
  JsonValue custom = JsonValue::object();
  if (start != nullptr) {
    call.set("id", JsonValue::string(start->id));
    call.set("type", JsonValue::string("custom"));
    custom.set("name", JsonValue::string(start->name));
  }
  custom.set("input", JsonValue::string(std::move(input)));
  call.set("custom", std::move(custom));
  return JsonValue::object({{"tool_calls", JsonValue::array({std::move(call)})}});
}

}  // namespace

// The text of a custom tool's call is told when its arguments are whole.
JsonValue ResponseRenderer::delta_of(Choice& of, const ReplyEvent& event) const {
  if (const auto* text = std::get_if<TextDelta>(&event))
    return JsonValue::object({{"content", JsonValue::string(text->text)}});
  if (const auto* text = std::get_if<ReasoningDelta>(&event))
    return JsonValue::object({{"reasoning_content", JsonValue::string(text->text)}});
  if (const auto* start = std::get_if<CallStart>(&event)) {
    of.in_custom = is_custom(request_, start->name);
    return of.in_custom ? custom_delta(start->index, start, "")
                        : call_delta(start->index, start, "");
  }
  if (const auto* arguments = std::get_if<CallArguments>(&event)) {
    if (!of.in_custom) return call_delta(arguments->index, nullptr, arguments->text);
    of.custom_text += arguments->text;
    return {};
  }
  const auto& end = std::get<CallEnd>(event);
  if (!std::exchange(of.in_custom, false)) return {};
  return custom_delta(end.index, nullptr, custom_input(std::exchange(of.custom_text, {})));
}

// One frame for each event; logprobs go with the first, or alone.
std::string ResponseRenderer::event_frames(size_t index, const ReplyEvents& events,
                                           JsonValue logprobs) {
  std::string frames;
  for (const ReplyEvent& event : events) {
    JsonValue delta = delta_of(choices_[index], event);
    if (delta.is_null()) continue;
    frames += delta_frame(index, std::move(delta), std::exchange(logprobs, JsonValue()));
  }
  if (!logprobs.is_null()) frames += text_frame(index, "", std::move(logprobs));
  return frames;
}

int32_t ResponseRenderer::calls_of(const Choice& from) const {
  return from.reader == nullptr ? 0 : from.reader->calls();
}

std::string ResponseRenderer::begin() {
  std::string frames;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (chat_) {
      frames += sse_frame(chunk(JsonValue::array({choice_json(i, role_delta(), JsonValue())})));
    } else if (request_.echo && !request_.sampling.prompt_logprobs) {
      frames += text_frame(i, echo_text(i / n_), JsonValue());
    }
  }
  return frames;
}

std::string ResponseRenderer::prompt_frames(size_t prompt, const protocol::PromptEvent& event) {
  std::string frames;
  if (chat_ || !request_.echo) return frames;
  for (size_t i = 0; i < n_; ++i) {
    Choice& to = choice(prompt, static_cast<int32_t>(i));
    LogprobLists lists;
    add_prompt(lists, to.characters, event, context_.tokenizer);
    frames += text_frame((prompt * n_) + i, echo_text(prompt), logprobs_json(std::move(lists)));
  }
  return frames;
}

std::string ResponseRenderer::render(size_t prompt, const protocol::TokenEvent& event) {
  if (finished()) return {};
  if (const auto* asked = std::get_if<protocol::PromptEvent>(&event))
    return prompt_frames(prompt, *asked);
  if (const auto* finish = std::get_if<protocol::FinishEvent>(&event))
    return finish_frames(prompt, *finish);
  if (const auto* failed = std::get_if<protocol::ErrorEvent>(&event))
    return error_frames(failed->error);
  const auto& text = std::get<protocol::TextEvent>(event);
  Choice& to = choice(prompt, text.choice);
  if (to.finish) return {};
  to.generated += static_cast<int64_t>(text.tokens.size());
  LogprobLists lists;
  add_tokens(lists, to.characters, chat_, text, context_.tokenizer);
  const size_t index = (prompt * n_) + static_cast<size_t>(text.choice);
  if (to.reader) {
    return event_frames(index, to.reader->push(text),
                        lists.empty() ? JsonValue() : logprobs_json(std::move(lists)));
  }
  if (text.text.empty() && lists.empty()) return {};
  return text_frame(index, text.text,
                    lists.empty() ? JsonValue() : logprobs_json(std::move(lists)));
}

// False: the request was aborted.
bool ResponseRenderer::take_finish(size_t prompt, const protocol::FinishEvent& finish) {
  Choice& to = choice(prompt, finish.choice);
  if (to.finish) return true;
  if (finish.reason == protocol::FinishReason::kAborted) return false;
  to.finish = finish;
  to.generated = finish.usage.completion_tokens;
  --open_;
  return true;
}

std::string ResponseRenderer::finish_frames(size_t prompt, const protocol::FinishEvent& finish) {
  if (choice(prompt, finish.choice).finish) return {};
  if (!take_finish(prompt, finish)) return error_frames(aborted());
  const size_t index = (prompt * n_) + static_cast<size_t>(finish.choice);
  Choice& to = choice(prompt, finish.choice);
  std::string frames;
  if (to.reader) frames = event_frames(index, to.reader->finish(finish.reason), JsonValue());
  JsonValue last =
      choice_json(index, chat_ ? JsonValue::Member{"delta", JsonValue::object()} : text_member(""),
                  JsonValue());
  last.set("finish_reason", JsonValue::string(finish_name(finish.reason, calls_of(to))));
  last.set("stop_reason", stop_reason(finish));
  frames += sse_frame(chunk(JsonValue::array({std::move(last)})));
  if (open_ > 0) return frames;
  const bool reports = request_.envelope && request_.envelope->report_tokens;
  if (request_.include_usage || request_.continuous_usage || reports) {
    JsonValue end = chunk(JsonValue::array());
    end.set("usage", usage_json(total_usage(), reasoning_tokens()));
    if (reports) end.set("tandem", report());
    frames += sse_frame(end);
  }
  return frames += kSseDone;
}

std::string ResponseRenderer::error_frames(Error error) {
  error_ = std::move(error);
  return sse_error(*error_);
}

// Counts logprobs that wait for a whole answer.
void ResponseRenderer::hold(size_t chances) {
  constexpr size_t kMaxHeld = size_t{48} << 20;
  held_bytes_ += chances * (chat_ ? 90 : 40);  // about what one takes as JSON
  if (held_bytes_ > kMaxHeld) error_ = answer_too_large();
}

void ResponseRenderer::collect(size_t prompt, const protocol::TokenEvent& event) {
  if (finished()) return;
  if (const auto* asked = std::get_if<protocol::PromptEvent>(&event)) {
    if (chat_ || !request_.echo) return;
    hold(asked->tokens.size() * n_ *
         static_cast<size_t>(request_.sampling.prompt_logprobs.value_or(0) + 1));
    for (size_t i = 0; i < n_ && !error_; ++i) {
      Choice& to = choice(prompt, static_cast<int32_t>(i));
      add_prompt(to.logprobs, to.characters, *asked, context_.tokenizer);
    }
  } else if (const auto* text = std::get_if<protocol::TextEvent>(&event)) {
    Choice& to = choice(prompt, text->choice);
    if (to.finish) return;
    if (to.reader) {
      hold_events(to, to.reader->push(*text));
    } else {
      to.text += text->text;
    }
    hold(text->logprobs.size() * static_cast<size_t>(request_.sampling.logprobs.value_or(0) + 1));
    if (error_) return;
    add_tokens(to.logprobs, to.characters, chat_, *text, context_.tokenizer);
  } else if (const auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
    Choice& to = choice(prompt, finish->choice);
    const bool open = !to.finish;
    if (!take_finish(prompt, *finish)) error_ = aborted();
    if (open && to.reader) hold_events(to, to.reader->finish(finish->reason));
  } else {
    error_ = std::get<protocol::ErrorEvent>(event).error;
  }
}

// Every prompt counts once, however many choices it has; what was generated counts, delivered or
// not.
protocol::Usage ResponseRenderer::total_usage() const {
  protocol::Usage total;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const protocol::Usage& usage = choices_[i].finish->usage;
    total.completion_tokens += usage.completion_tokens + choices_[i].finish->discarded_tokens;
    if (i % n_ != 0) continue;
    total.prompt_tokens += usage.prompt_tokens;
    total.cached_tokens += usage.cached_tokens;
  }
  return total;
}

protocol::Usage ResponseRenderer::usage_so_far() const {
  protocol::Usage usage;
  for (const int64_t tokens : context_.prompt_tokens)
    usage.prompt_tokens += static_cast<int32_t>(tokens);
  for (const Choice& from : choices_)
    usage.completion_tokens += static_cast<int32_t>(from.generated);
  return usage;
}

int64_t ResponseRenderer::reasoning_tokens() const {
  int64_t tokens = 0;
  for (const Choice& from : choices_) {
    if (from.reader) tokens += from.reader->reasoning_tokens();
  }
  return tokens;
}

JsonValue ResponseRenderer::report() const {
  JsonValue ids = JsonValue::array();
  for (const Choice& from : choices_) ids.push_back(token_array(from.finish->completion_tokens));
  return JsonValue::object({{"completion_token_ids", std::move(ids)}});
}

std::unique_ptr<ReplyRenderer> make_renderer(const ApiRequest& request, ReplyContext context) {
  if (request.endpoint == Endpoint::kMessages)
    return make_messages_renderer(request, std::move(context));
  if (request.endpoint == Endpoint::kResponses)
    return make_responses_renderer(request, std::move(context));
  return std::make_unique<ResponseRenderer>(request, std::move(context));
}

std::string count_body(Endpoint endpoint, int64_t tokens) {
  JsonValue out = JsonValue::object();
  if (endpoint == Endpoint::kInputTokens)
    out.set("object", JsonValue::string("response.input_tokens"));
  out.set("input_tokens", JsonValue::integer(tokens));
  return out.dump();
}

}  // namespace tandem::api
