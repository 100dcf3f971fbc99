#include "api/agent_reply.h"

#include <utility>

#include "api/fields.h"

namespace tandem::api {

AgentReply::AgentReply(const ApiRequest& request, ReplyContext context)
    : request_(request),
      context_(std::move(context)),
      reader_(context_.reading.empty() ? ReplyReading{} : context_.reading[0], 0) {}

std::string AgentReply::render(size_t, const protocol::TokenEvent& event) {
  std::string out;
  if (finished()) return out;
  if (const auto* said = std::get_if<protocol::TextEvent>(&event)) {
    for (const ReplyEvent& part : reader_.push(*said)) out += take(part);
  } else if (const auto* end = std::get_if<protocol::FinishEvent>(&event)) {
    if (end->reason == protocol::FinishReason::kAborted)
      return end_with({503, "request_aborted", "the request was aborted before it finished"});
    for (const ReplyEvent& part : reader_.finish(end->reason)) out += take(part);
    out += close(*end);
    finish_ = *end;
    out += last();
  } else if (const auto* failed_with = std::get_if<protocol::ErrorEvent>(&event)) {
    return end_with(failed_with->error);
  }
  return out;
}

void AgentReply::collect(size_t prompt, const protocol::TokenEvent& event) {
  (void)render(prompt, event);
}

Result<std::string> AgentReply::body() const {
  if (error_) return tl::unexpected(*error_);
  if (!finish_) return internal_error("the answer ended without a finish");
  JsonValue out = whole();
  add_report(out);
  return out.dump();
}

void AgentReply::add_report(JsonValue& json) const {
  if (!request_.envelope || !request_.envelope->report_tokens) return;
  json.set("tandem",
           JsonValue::object({{"completion_token_ids",
                               JsonValue::array({token_array(finish_->completion_tokens)})}}));
}

std::string AgentReply::end_with(Error error) {
  error_ = std::move(error);
  return fail();
}

}  // namespace tandem::api
