// Token events to the bytes of the OpenAI dialect.
#include <utility>

#include "api/fields.h"
#include "api/openai.h"
#include "base/reply_text.h"

namespace tandem::api {

namespace {

const char* finish_name(protocol::FinishReason reason) {
  return reason == protocol::FinishReason::kLength ? "length" : "stop";
}

Error aborted() { return {503, "request_aborted", "the request was aborted before it finished"}; }

JsonValue choice_object(JsonValue::Member content, const char* finish) {
  JsonValue choice = JsonValue::object();
  choice.set("index", JsonValue::integer(0));
  choice.set(content.first, std::move(content.second));
  choice.set("logprobs", JsonValue());
  choice.set("finish_reason", finish == nullptr ? JsonValue() : JsonValue::string(finish));
  return choice;
}

JsonValue completion_report(const protocol::FinishEvent& finish) {
  return JsonValue::object({{"completion_token_ids", token_array(finish.completion_tokens)}});
}

}  // namespace

JsonValue usage_json(const protocol::Usage& usage) {
  JsonValue json = JsonValue::object();
  json.set("prompt_tokens", JsonValue::integer(usage.prompt_tokens));
  json.set("completion_tokens", JsonValue::integer(usage.completion_tokens));
  json.set("total_tokens",
           JsonValue::integer(int64_t{usage.prompt_tokens} + usage.completion_tokens));
  json.set("prompt_tokens_details",
           JsonValue::object({{"cached_tokens", JsonValue::integer(usage.cached_tokens)}}));
  return json;
}

ResponseRenderer::ResponseRenderer(const ApiRequest& request, std::string id, int64_t created,
                                   std::string model)
    : endpoint_(request.endpoint),
      include_usage_(request.include_usage),
      report_tokens_(request.envelope && request.envelope->report_tokens),
      id_(std::move(id)),
      created_(created),
      model_(std::move(model)) {}

JsonValue ResponseRenderer::chunk(JsonValue choices) const {
  const bool chat = endpoint_ == Endpoint::kChatCompletions;
  JsonValue json = JsonValue::object();
  json.set("id", JsonValue::string(id_));
  json.set("object", JsonValue::string(chat ? "chat.completion.chunk" : "text_completion"));
  json.set("created", JsonValue::integer(created_));
  json.set("model", JsonValue::string(model_));
  json.set("choices", std::move(choices));
  if (include_usage_) json.set("usage", JsonValue());
  return json;
}

std::string ResponseRenderer::begin() {
  if (endpoint_ != Endpoint::kChatCompletions) return {};
  JsonValue delta = JsonValue::object(
      {{"role", JsonValue::string("assistant")}, {"content", JsonValue::string("")}});
  return sse_frame(chunk(JsonValue::array({choice_object({"delta", std::move(delta)}, nullptr)})));
}

std::string ResponseRenderer::render(const protocol::TokenEvent& event) {
  if (finished_) return {};
  if (const auto* text = std::get_if<protocol::TextEvent>(&event)) {
    if (text->text.empty()) return {};
    JsonValue::Member content =
        endpoint_ == Endpoint::kChatCompletions
            ? JsonValue::Member{"delta",
                                JsonValue::object({{"content", JsonValue::string(text->text)}})}
            : JsonValue::Member{"text", JsonValue::string(text->text)};
    return sse_frame(chunk(JsonValue::array({choice_object(std::move(content), nullptr)})));
  }
  finished_ = true;
  if (const auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
    return finish->reason == protocol::FinishReason::kAborted ? error_frames(aborted())
                                                              : finish_frames(*finish);
  }
  return error_frames(std::get<protocol::ErrorEvent>(event).error);
}

std::string ResponseRenderer::finish_frames(const protocol::FinishEvent& finish) {
  JsonValue::Member nothing = endpoint_ == Endpoint::kChatCompletions
                                  ? JsonValue::Member{"delta", JsonValue::object()}
                                  : JsonValue::Member{"text", JsonValue::string("")};
  std::string frames = sse_frame(
      chunk(JsonValue::array({choice_object(std::move(nothing), finish_name(finish.reason))})));
  if (include_usage_ || report_tokens_) {
    JsonValue last = chunk(JsonValue::array());
    last.set("usage", usage_json(finish.usage));
    if (report_tokens_) last.set("tandem", completion_report(finish));
    frames += sse_frame(last);
  }
  return frames += kSseDone;
}

std::string ResponseRenderer::error_frames(Error error) {
  error_ = std::move(error);
  return sse_error(*error_);
}

void ResponseRenderer::collect(const protocol::TokenEvent& event) {
  if (finished_) return;
  if (const auto* text = std::get_if<protocol::TextEvent>(&event)) {
    text_ += text->text;
    return;
  }
  finished_ = true;
  if (const auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
    if (finish->reason == protocol::FinishReason::kAborted) {
      error_ = aborted();
    } else {
      finish_ = *finish;
    }
  } else {
    error_ = std::get<protocol::ErrorEvent>(event).error;
  }
}

Result<std::string> ResponseRenderer::body() const {
  if (error_) return tl::unexpected(*error_);
  if (!finish_) return internal_error("the answer ended without a finish");
  const bool chat = endpoint_ == Endpoint::kChatCompletions;
  JsonValue::Member content =
      chat ? JsonValue::Member{"message",
                               JsonValue::object({{"role", JsonValue::string("assistant")},
                                                  {"content", JsonValue::string(text_)},
                                                  {"refusal", JsonValue()}})}
           : JsonValue::Member{"text", JsonValue::string(text_)};
  JsonValue json = JsonValue::object();
  json.set("id", JsonValue::string(id_));
  json.set("object", JsonValue::string(chat ? "chat.completion" : "text_completion"));
  json.set("created", JsonValue::integer(created_));
  json.set("model", JsonValue::string(model_));
  json.set("choices",
           JsonValue::array({choice_object(std::move(content), finish_name(finish_->reason))}));
  json.set("usage", usage_json(finish_->usage));
  if (report_tokens_) json.set("tandem", completion_report(*finish_));
  return json.dump();
}

std::string models_body(std::span<const ModelEntry> models, int64_t created) {
  JsonValue data = JsonValue::array();
  for (const ModelEntry& entry : models) {
    JsonValue model = JsonValue::object();
    model.set("id", JsonValue::string(entry.id));
    model.set("object", JsonValue::string("model"));
    model.set("created", JsonValue::integer(created));
    model.set("owned_by", JsonValue::string("tandem"));
    if (!entry.parent.empty()) model.set("parent", JsonValue::string(entry.parent));
    if (entry.context_length > 0)
      model.set("max_model_len", JsonValue::integer(entry.context_length));
    data.push_back(std::move(model));
  }
  JsonValue body = JsonValue::object();
  body.set("object", JsonValue::string("list"));
  body.set("data", std::move(data));
  return body.dump();
}

std::string tokenize_body(std::span<const int32_t> tokens, int64_t context_length) {
  JsonValue json = JsonValue::object();
  json.set("count", JsonValue::integer(static_cast<int64_t>(tokens.size())));
  json.set("max_model_len", JsonValue::integer(context_length));
  json.set("tokens", token_array(tokens));
  return json.dump();
}

std::string detokenize_body(std::string_view text) {
  return JsonValue::object({{"prompt", JsonValue::string(std::string(text))}}).dump();
}

}  // namespace tandem::api
