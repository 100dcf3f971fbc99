// Replies of the Responses dialect: output items, each added, filled and done, under one response
// object that stands in the first and the last event.
#include <algorithm>
#include <utility>

#include "api/agent_reply.h"
#include "api/custom_tools.h"
#include "api/responses_readers.h"
#include "base/reply_text.h"

namespace tandem::api {

namespace {

JsonValue text(std::string value) { return JsonValue::string(std::move(value)); }

class ResponsesRenderer final : public AgentReply {
 public:
  ResponsesRenderer(const ApiRequest& request, ReplyContext context)
      : AgentReply(request, std::move(context)),
        id_(context_.id.substr(context_.id.find('_') + 1)) {}

  std::string begin() override {
    return response_event("response.created", "in_progress") +
           response_event("response.in_progress", "in_progress");
  }

 private:
  static bool is_cut(const protocol::FinishEvent& end) {
    return end.reason == protocol::FinishReason::kLength;
  }

  std::string close(const protocol::FinishEvent& end) override {
    return close_item(is_cut(end) ? "incomplete" : "completed");
  }

  std::string last() override {
    return is_cut(*finish_) ? response_event("response.incomplete", "incomplete")
                            : response_event("response.completed", "completed");
  }

  std::string fail() override {
    std::string out = close_item("incomplete");
    return out += response_event("response.failed", "failed");
  }

  JsonValue whole() const override {
    return response(is_cut(*finish_) ? "incomplete" : "completed");
  }

  std::string frame(const char* type, JsonValue::Object members) {
    JsonValue event = JsonValue::object({{"type", text(type)}});
    event.set("sequence_number", JsonValue::integer(sequence_++));
    for (auto& [key, value] : members) event.set(key, std::move(value));
    return "event: " + std::string(type) + "\n" + sse_frame(event);
  }

  std::string response_event(const char* type, const char* status) {
    JsonValue event = JsonValue::object({{"response", response(status)}});
    if (finish_) add_report(event);
    return frame(type, event.members());
  }

  JsonValue usage() const {
    const protocol::Usage& counted = finish_->usage;
    JsonValue json = JsonValue::object();
    json.set("input_tokens", JsonValue::integer(counted.prompt_tokens));
    json.set("input_tokens_details",
             JsonValue::object({{"cached_tokens", JsonValue::integer(counted.cached_tokens)}}));
    json.set("output_tokens", JsonValue::integer(counted.completion_tokens));
    json.set(
        "output_tokens_details",
        JsonValue::object({{"reasoning_tokens", JsonValue::integer(reader_.reasoning_tokens())}}));
    json.set("total_tokens",
             JsonValue::integer(int64_t{counted.prompt_tokens} + counted.completion_tokens));
    return json;
  }

  JsonValue response(const char* status) const {
    JsonValue json = JsonValue::object();
    json.set("id", text(context_.id));
    json.set("object", text("response"));
    json.set("created_at", JsonValue::integer(context_.created));
    json.set("status", text(status));
    json.set("error", error_ ? JsonValue::object({{"code", text(error_->code)},
                                                  {"message", text(error_->message)}})
                             : JsonValue());
    const bool cut = finish_ && is_cut(*finish_);
    json.set("incomplete_details",
             cut ? JsonValue::object({{"reason", text("max_output_tokens")}}) : JsonValue());
    json.set("model", text(context_.model));
    json.set("output", finished() ? JsonValue::array(items_) : JsonValue::array());
    // What the client said comes back as it said it.
    struct Echo {
      const char* key;
      const char* absent;
    };
    constexpr Echo kEchoes[] = {{"instructions", "null"},
                                {"max_output_tokens", "null"},
                                {"metadata", "{}"},
                                {"parallel_tool_calls", "true"},
                                {"previous_response_id", "null"},
                                {"prompt_cache_key", "null"},
                                {"reasoning", R"({"effort":null,"summary":null})"},
                                {"store", "true"},
                                {"temperature", "1.0"},
                                {"text", R"({"format":{"type":"text"}})"},
                                {"tool_choice", R"("auto")"},
                                {"tools", "[]"},
                                {"top_p", "1.0"},
                                {"truncation", R"("disabled")"},
                                {"user", "null"}};
    for (const Echo& echo : kEchoes) {
      const JsonValue* said = request_.echo_fields.find(echo.key);
      json.set(echo.key, said == nullptr || said->is_null() ? *parse_json(echo.absent) : *said);
    }
    json.set("usage", finish_ ? usage() : JsonValue());
    if (!context_.notes.is_null()) json.set("tandem_notes", context_.notes);
    return json;
  }

  enum class Kind : uint8_t { kNone, kMessage, kReasoning, kFunction, kCustom };

  JsonValue::Object place(bool part) const {
    JsonValue::Object out = {
        {"item_id", *item_.find("id")},
        {"output_index", JsonValue::integer(static_cast<int64_t>(items_.size()))}};
    if (part) out.emplace_back("content_index", JsonValue::integer(0));
    return out;
  }

  static JsonValue::Object with(JsonValue::Object members, const char* key, JsonValue value) {
    members.emplace_back(key, std::move(value));
    return members;
  }

  std::string open_item(Kind kind, const char* prefix, JsonValue::Object members) {
    std::string out = close_item("completed");
    kind_ = kind;
    text_.clear();
    item_ = JsonValue::object({{"id", text(prefix + id_ + "_" + std::to_string(items_.size()))}});
    for (auto& [key, value] : members) item_.set(key, std::move(value));
    return out += frame("response.output_item.added",
                        {{"output_index", JsonValue::integer(static_cast<int64_t>(items_.size()))},
                         {"item", item_}});
  }

  JsonValue part_json() const {
    if (kind_ == Kind::kReasoning)
      return JsonValue::object({{"type", text("reasoning_text")}, {"text", text(text_)}});
    return JsonValue::object({{"type", text("output_text")},
                              {"text", text(text_)},
                              {"annotations", JsonValue::array()},
                              {"logprobs", JsonValue::array()}});
  }

  std::string add_text(Kind kind, const std::string& some) {
    std::string out;
    const bool message = kind == Kind::kMessage;
    if (kind_ != kind) {
      if (message) {
        out = open_item(kind, "msg_",
                        {{"type", text("message")},
                         {"status", text("in_progress")},
                         {"role", text("assistant")},
                         {"content", JsonValue::array()}});
      } else {
        out = open_item(kind, "rs_",
                        {{"type", text("reasoning")},
                         {"summary", JsonValue::array()},
                         {"content", JsonValue::array()},
                         {"status", text("in_progress")}});
      }
      out += frame("response.content_part.added", with(place(true), "part", part_json()));
    }
    text_ += some;
    JsonValue::Object members = with(place(true), "delta", text(some));
    if (message) members.emplace_back("logprobs", JsonValue::array());
    return out += frame(message ? "response.output_text.delta" : "response.reasoning_text.delta",
                        std::move(members));
  }

  std::string open_call(const CallStart& start) {
    const ToolName* known = find_tool_name(request_, start.name);
    const bool named = known != nullptr;
    const bool custom = named && known->custom;
    JsonValue::Object members = {{"type", text(custom ? "custom_tool_call" : "function_call")},
                                 {"status", text("in_progress")},
                                 {"call_id", text(start.id)},
                                 {"name", text(named ? known->name : start.name)},
                                 {custom ? "input" : "arguments", text("")}};
    if (named && !known->space.empty()) members.emplace_back("namespace", text(known->space));
    return open_item(custom ? Kind::kCustom : Kind::kFunction, custom ? "ctc_" : "fc_",
                     std::move(members));
  }

  std::string take(const ReplyEvent& event) override {
    if (const auto* said = std::get_if<TextDelta>(&event))
      return add_text(Kind::kMessage, said->text);
    if (const auto* thought = std::get_if<ReasoningDelta>(&event))
      return add_text(Kind::kReasoning, thought->text);
    if (const auto* start = std::get_if<CallStart>(&event)) return open_call(*start);
    if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      text_ += arguments->text;
      if (kind_ == Kind::kCustom) return {};  // its text is inside the arguments
      return frame("response.function_call_arguments.delta",
                   with(place(false), "delta", text(arguments->text)));
    }
    return close_item(std::get<CallEnd>(event).complete ? "completed" : "incomplete");
  }

  std::string close_item(const char* status) {
    std::string out;
    switch (std::exchange(kind_, Kind::kNone)) {
      case Kind::kNone:
        return out;
      case Kind::kMessage:
        kind_ = Kind::kMessage;
        out += frame("response.output_text.done",
                     with(with(place(true), "text", text(text_)), "logprobs", JsonValue::array()));
        out += close_part();
        break;
      case Kind::kReasoning:
        kind_ = Kind::kReasoning;
        out += frame("response.reasoning_text.done", with(place(true), "text", text(text_)));
        out += close_part();
        if (request_.sealed_reasoning) item_.set("encrypted_content", text(seal_reasoning(text_)));
        break;
      case Kind::kFunction:
        item_.set("arguments", text(text_));
        out +=
            frame("response.function_call_arguments.done",
                  with(with(place(false), "name", *item_.find("name")), "arguments", text(text_)));
        break;
      case Kind::kCustom:
        out += close_custom();
        break;
    }
    kind_ = Kind::kNone;
    item_.set("status", text(status));
    out += frame("response.output_item.done",
                 {{"output_index", JsonValue::integer(static_cast<int64_t>(items_.size()))},
                  {"item", item_}});
    items_.push_back(std::move(item_));
    return out;
  }

  std::string close_part() {
    *item_.find("content") = JsonValue::array({part_json()});
    return frame("response.content_part.done", with(place(true), "part", part_json()));
  }

  std::string close_custom() {
    const std::string input = custom_input(text_);
    item_.set("input", text(input));
    return frame("response.custom_tool_call_input.delta",
                 with(place(false), "delta", text(input))) +
           frame("response.custom_tool_call_input.done", with(place(false), "input", text(input)));
  }

  const std::string id_;  // what all ids of this reply share
  int64_t sequence_ = 0;
  JsonValue::Array items_;  // done
  JsonValue item_;          // open
  Kind kind_ = Kind::kNone;
  std::string text_;  // of the open item
};

}  // namespace

std::unique_ptr<ReplyRenderer> make_responses_renderer(const ApiRequest& request,
                                                       ReplyContext context) {
  return std::make_unique<ResponsesRenderer>(request, std::move(context));
}

}  // namespace tandem::api
