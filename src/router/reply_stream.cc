#include "router/reply_stream.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/json_value.h"
#include "base/reply_text.h"
#include "router/usage/reply_words.h"

namespace tandem::router {

namespace {

constexpr size_t kOpeningBytes = 8UL << 10;

bool is_empty(const JsonValue& value) {
  return value.is_null() || (value.is_string() && value.as_string().empty()) ||
         (value.is_array() && value.items().empty());
}

// Anthropic's and the Responses API's, by their types.
bool opens(const std::string& type) {
  static constexpr std::array<std::string_view, 8> kTypes = {"message_start",
                                                             "content_block_start",
                                                             "ping",
                                                             "response.created",
                                                             "response.queued",
                                                             "response.in_progress",
                                                             "response.output_item.added",
                                                             "response.content_part.added"};
  return std::ranges::find(kTypes, type) != kTypes.end();
}

bool has_type(std::string_view data, std::string_view type) {
  const size_t at = find_word(data, type);
  return at != std::string_view::npos && at > 0 && data[at - 1] == '"' &&
         data.substr(at + type.size(), 1) == "\"";
}

}  // namespace

bool is_opening(std::string_view data) {
  if (data.size() > kOpeningBytes) return false;
  // Most of what is asked about has content, and is no opening.
  constexpr std::string_view kContent = R"("delta":{"content":")";
  const size_t content = find_word(data, kContent);
  if (content != std::string_view::npos && data.substr(content + kContent.size(), 1) != "\"")
    return false;
  const auto json = parse_json(data);
  if (!json) return false;
  if (const JsonValue* const type = json->find("type"); type != nullptr && type->is_string())
    return opens(type->as_string());
  const JsonValue* const choices = json->find("choices");
  if (choices == nullptr || choices->items().size() != 1) return false;
  const JsonValue& choice = choices->items()[0];
  const JsonValue* const reason = choice.find("finish_reason");
  const JsonValue* const delta = choice.find("delta");
  if (delta == nullptr || (reason != nullptr && !reason->is_null())) return false;
  return std::ranges::all_of(delta->members(), [](const JsonValue::Member& member) {
    return member.first == "role" || is_empty(member.second);
  });
}

bool is_last_event(Api api, std::string_view data) {
  if (api == Api::kOther) return true;  // nobody knows; its end is its end
  if (api == Api::kMessages) return has_type(data, "message_stop");
  if (api != Api::kResponses) return false;
  return has_type(data, "response.completed") || has_type(data, "response.incomplete") ||
         has_type(data, "response.failed");
}

void ResponseFacts::learn(std::string_view frames) {
  constexpr std::string_view kNumber = "\"sequence_number\":";
  const auto value = [&](size_t at) {
    return frames.substr(std::min(frames.find_first_not_of(' ', at), frames.size()));
  };
  if (const size_t at = frames.rfind(kNumber); at != std::string_view::npos) {
    const std::string_view digits = value(at + kNumber.size());
    int64_t told = 0;
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), told);
    if (failed == std::errc() && told >= 0 && told < INT64_MAX) sequence = told + 1;
  }
  if (!id.empty()) return;
  constexpr std::string_view kId = "\"id\":";
  const size_t response = frames.find("\"response\":");
  const size_t at = response == std::string_view::npos ? response : frames.find(kId, response);
  if (at == std::string_view::npos) return;
  const std::string_view text = value(at + kId.size());
  const size_t end = text.find('"', 1);
  if (text.starts_with('"') && end != std::string_view::npos && end <= 256)
    id = text.substr(1, end - 1);
}

bool ends_with_done(Api api) {
  return api != Api::kMessages && api != Api::kResponses && api != Api::kOther;
}

std::string stream_of_whole(Api api, std::string_view reply, bool include_usage) {
  auto json = parse_json(reply);
  const bool chat = api == Api::kChat;
  if (!json || (!chat && api != Api::kCompletions)) {
    return sse_frame(reply) + (ends_with_done(api) ? std::string(kSseDone) : std::string());
  }
  json->set("object", JsonValue::string(chat ? "chat.completion.chunk" : "text_completion"));
  const JsonValue* const counted = json->find("usage");
  JsonValue usage = counted == nullptr ? JsonValue() : *counted;
  json->erase("usage");
  if (JsonValue* const choices = json->find("choices"); chat && choices != nullptr) {
    for (JsonValue& choice : choices->items()) {
      const JsonValue* const message = choice.find("message");
      JsonValue delta = message == nullptr ? JsonValue::object() : *message;
      choice.erase("message");
      choice.set("delta", std::move(delta));
    }
  }
  std::string out = sse_frame(*json);
  if (include_usage) {
    json->set("choices", JsonValue::array());
    json->set("usage", std::move(usage));
    out += sse_frame(*json);
  }
  return out + std::string(kSseDone);
}

}  // namespace tandem::router
