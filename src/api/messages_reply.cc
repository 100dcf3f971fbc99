// Replies of the Messages dialect: content blocks, one after another.
#include <utility>

#include "api/agent_reply.h"
#include "api/dialect_errors.h"
#include "base/reply_text.h"

namespace tandem::api {

namespace {

JsonValue text(std::string value) { return JsonValue::string(std::move(value)); }

class MessagesRenderer final : public AgentReply {
 public:
  MessagesRenderer(const ApiRequest& request, ReplyContext context)
      : AgentReply(request, std::move(context)) {}

  std::string begin() override {
    protocol::Usage usage;
    usage.prompt_tokens = static_cast<int32_t>(context_.prompt_tokens[0]);
    JsonValue event = JsonValue::object({{"type", text("message_start")}});
    event.set("message", message(JsonValue::array(), JsonValue(), JsonValue(), usage));
    return frame(event);
  }

 private:
  std::string close(const protocol::FinishEvent&) override { return close_block(); }

  JsonValue whole() const override {
    return message(JsonValue::array(blocks_), stop_reason(), stop_sequence(), finish_->usage);
  }

  std::string fail() override { return frame(anthropic_error(*error_)); }

  static std::string frame(const JsonValue& event) {
    return "event: " + event.find("type")->as_string() + "\n" + sse_frame(event);
  }

  // Cached prompt tokens are counted apart from those that had to be read.
  static JsonValue usage_json(const protocol::Usage& usage) {
    JsonValue json = JsonValue::object();
    json.set("input_tokens", JsonValue::integer(usage.prompt_tokens - usage.cached_tokens));
    json.set("cache_creation_input_tokens", JsonValue::integer(0));
    json.set("cache_read_input_tokens", JsonValue::integer(usage.cached_tokens));
    json.set("output_tokens", JsonValue::integer(usage.completion_tokens));
    json.set("service_tier", text("standard"));
    return json;
  }

  JsonValue message(JsonValue content, JsonValue reason, JsonValue sequence,
                    const protocol::Usage& usage) const {
    JsonValue json = JsonValue::object();
    json.set("id", text(context_.id));
    json.set("type", text("message"));
    json.set("role", text("assistant"));
    json.set("model", text(context_.model));
    json.set("content", std::move(content));
    json.set("stop_reason", std::move(reason));
    json.set("stop_sequence", std::move(sequence));
    json.set("usage", usage_json(usage));
    if (!context_.notes.is_null()) json.set("tandem_notes", context_.notes);
    return json;
  }

  JsonValue stop_reason() const {
    if (finish_->reason == protocol::FinishReason::kLength) return text("max_tokens");
    if (reader_.calls() > 0) return text("tool_use");
    return text(finish_->stop_string ? "stop_sequence" : "end_turn");
  }
  JsonValue stop_sequence() const {
    return finish_->stop_string ? text(*finish_->stop_string) : JsonValue();
  }

  std::string last() override {
    JsonValue delta = JsonValue::object({{"stop_reason", stop_reason()}});
    delta.set("stop_sequence", stop_sequence());
    JsonValue event = JsonValue::object({{"type", text("message_delta")}});
    event.set("delta", std::move(delta));
    event.set("usage", usage_json(finish_->usage));
    add_report(event);
    return frame(event) + frame(JsonValue::object({{"type", text("message_stop")}}));
  }

  enum class Block : uint8_t { kNone, kText, kThinking, kTool };

  std::string open_block(Block kind, JsonValue block) {
    std::string out = close_block();
    kind_ = kind;
    JsonValue event = JsonValue::object({{"type", text("content_block_start")}});
    event.set("index", JsonValue::integer(static_cast<int64_t>(blocks_.size())));
    event.set("content_block", block);
    blocks_.push_back(std::move(block));
    input_.clear();
    return out + frame(event);
  }

  std::string delta(const char* type, const char* key, const std::string& some) {
    JsonValue inner = JsonValue::object({{"type", text(type)}});
    inner.set(key, text(some));
    JsonValue event = JsonValue::object({{"type", text("content_block_delta")}});
    event.set("index", JsonValue::integer(static_cast<int64_t>(blocks_.size()) - 1));
    event.set("delta", std::move(inner));
    return frame(event);
  }

  std::string close_block() {
    if (kind_ == Block::kNone) return {};
    if (kind_ == Block::kTool) {
      auto input = parse_json(input_.empty() ? "{}" : input_);
      blocks_.back().set("input", input ? std::move(*input) : JsonValue::object());
    }
    kind_ = Block::kNone;
    JsonValue event = JsonValue::object({{"type", text("content_block_stop")}});
    event.set("index", JsonValue::integer(static_cast<int64_t>(blocks_.size()) - 1));
    return frame(event);
  }

  std::string add_text(Block kind, const char* block, const char* type, const char* key,
                       const std::string& some) {
    std::string out;
    if (kind_ != kind) {
      JsonValue opened = JsonValue::object({{"type", text(block)}, {key, text("")}});
      if (kind == Block::kThinking) opened.set("signature", text(""));
      out = open_block(kind, std::move(opened));
    }
    JsonValue* const so_far = blocks_.back().find(key);
    *so_far = text(so_far->as_string() + some);
    return out + delta(type, key, some);
  }

  std::string take(const ReplyEvent& event) override {
    if (const auto* said = std::get_if<TextDelta>(&event))
      return add_text(Block::kText, "text", "text_delta", "text", said->text);
    if (const auto* thought = std::get_if<ReasoningDelta>(&event))
      return add_text(Block::kThinking, "thinking", "thinking_delta", "thinking", thought->text);
    if (const auto* start = std::get_if<CallStart>(&event)) {
      return open_block(Block::kTool, JsonValue::object({{"type", text("tool_use")},
                                                         {"id", text(start->id)},
                                                         {"name", text(start->name)},
                                                         {"input", JsonValue::object()}}));
    }
    if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      input_ += arguments->text;
      return delta("input_json_delta", "partial_json", arguments->text);
    }
    return close_block();
  }

  JsonValue::Array blocks_;
  Block kind_ = Block::kNone;
  std::string input_;  // of the tool_use block that is open
};

}  // namespace

std::unique_ptr<ReplyRenderer> make_messages_renderer(const ApiRequest& request,
                                                      ReplyContext context) {
  return std::make_unique<MessagesRenderer>(request, std::move(context));
}

}  // namespace tandem::api
