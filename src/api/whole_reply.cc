// Answers of chat and completions that are not streamed.
#include <utility>

#include "api/custom_tools.h"
#include "api/responses.h"
#include "base/reply_text.h"

namespace tandem::api {

void ResponseRenderer::hold_events(Choice& to, ReplyEvents events) {
  for (ReplyEvent& event : events) {
    if (auto* text = std::get_if<TextDelta>(&event)) {
      to.text += text->text;
    } else if (auto* thought = std::get_if<ReasoningDelta>(&event)) {
      to.reasoning += thought->text;
    } else if (auto* start = std::get_if<CallStart>(&event);
               start && is_custom(request_, start->name)) {
      to.in_custom = true;
      to.calls.push_back(
          JsonValue::object({{"id", JsonValue::string(start->id)},
                             {"type", JsonValue::string("custom")},
                             {"custom", JsonValue::object({{"name", JsonValue::string(start->name)},
                                                           {"input", JsonValue::string("")}})}}));
    } else if (start != nullptr) {
      to.calls.push_back(JsonValue::object(
          {{"id", JsonValue::string(start->id)},
           {"type", JsonValue::string("function")},
           {"function", JsonValue::object({{"name", JsonValue::string(start->name)},
                                           {"arguments", JsonValue::string("")}})}}));
    } else if (auto* arguments = std::get_if<CallArguments>(&event); arguments && to.in_custom) {
      to.custom_text += arguments->text;
    } else if (arguments != nullptr) {
      JsonValue* given = to.calls.back().find("function")->find("arguments");
      *given = JsonValue::string(given->as_string() + arguments->text);
    } else if (std::exchange(to.in_custom, false)) {
      *to.calls.back().find("custom")->find("input") =
          JsonValue::string(custom_input(std::exchange(to.custom_text, {})));
    }
  }
}

JsonValue ResponseRenderer::message_json(const Choice& from) const {
  JsonValue message = JsonValue::object({{"role", JsonValue::string("assistant")}});
  const bool only_calls = from.text.empty() && !from.calls.empty();
  message.set("content", only_calls ? JsonValue() : JsonValue::string(from.text));
  if (!from.reasoning.empty()) message.set("reasoning_content", JsonValue::string(from.reasoning));
  message.set("refusal", JsonValue());
  message.set("annotations", JsonValue::array());
  if (!from.calls.empty()) message.set("tool_calls", JsonValue::array(from.calls));
  return message;
}

Result<std::string> ResponseRenderer::body() const {
  if (error_) return tl::unexpected(*error_);
  if (open_ > 0) return internal_error("the answer ended without a finish");
  JsonValue choices = JsonValue::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& from = choices_[i];
    JsonValue::Member content =
        chat_ ? JsonValue::Member{"message", message_json(from)}
              : JsonValue::Member{
                    "text", JsonValue::string((request_.echo ? echo_text(i / n_) : std::string()) +
                                              from.text)};
    JsonValue made = choice_json(i, std::move(content), logprobs_json(from.logprobs));
    made.set("finish_reason", JsonValue::string(finish_name(from.finish->reason, calls_of(from))));
    made.set("stop_reason", stop_reason(*from.finish));
    choices.push_back(std::move(made));
  }
  JsonValue json = envelope_of("chat.completion", std::move(choices));
  json.set("usage", usage_json(total_usage(), reasoning_tokens()));
  if (!context_.notes.is_null()) json.set("tandem_notes", context_.notes);
  if (request_.envelope && request_.envelope->report_tokens) json.set("tandem", report());
  return json.dump();
}

}  // namespace tandem::api
