#include "api/reply_reader.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace tandem::api {

namespace {

int32_t call_of(const ReplyEvent& event) {
  if (const auto* start = std::get_if<CallStart>(&event)) return start->index;
  if (const auto* arguments = std::get_if<CallArguments>(&event)) return arguments->index;
  if (const auto* end = std::get_if<CallEnd>(&event)) return end->index;
  return -1;
}

}  // namespace

ReplyReader::ReplyReader(const ReplyReading& reading, size_t choice)
    : format_(reading.format), tools_(reading.tools), parallel_(reading.parallel) {
  if (format_ == nullptr) return;
  ReplySetup setup;
  setup.tools = tools_ == nullptr ? nullptr : &tools_->table;
  setup.ids.style = format_->ids();
  setup.ids.prefix = reading.id_prefix;
  setup.ids.random = reading.random + (choice == 0 ? "" : "c" + std::to_string(choice));
  setup.ids.first = reading.calls_before;
  setup.prompt_end = reading.prompt_end;
  setup.live = reading.live;
  reasoning_ = format_->opening(reading.prompt_end) == Opening::kReasoning;
  parser_ = std::make_unique<ReplyParser>(*format_, std::move(setup));
}

// Of one event the last thing said tells what its tokens were.
ReplyEvents ReplyReader::push(const protocol::TextEvent& event) {
  if (parser_ == nullptr) {
    ReplyEvents out;
    if (!event.text.empty()) out.emplace_back(TextDelta{event.text});
    return out;
  }
  ReplyEvents events = parser_->push(event.text, event.marks);
  if (!events.empty()) reasoning_ = std::holds_alternative<ReasoningDelta>(events.back());
  if (reasoning_) reasoning_tokens_ += static_cast<int64_t>(event.tokens.size());
  return kept(std::move(events));
}

ReplyEvents ReplyReader::finish(protocol::FinishReason reason) {
  if (parser_ == nullptr) return {};
  return kept(parser_->finish(reason != protocol::FinishReason::kStop));
}

ReplyEvents ReplyReader::kept(ReplyEvents events) {
  if (!parallel_) std::erase_if(events, [](const ReplyEvent& event) { return call_of(event) > 0; });
  calls_ += static_cast<int32_t>(std::ranges::count_if(events, [](const ReplyEvent& event) {
    const auto* end = std::get_if<CallEnd>(&event);
    return end != nullptr && end->complete;
  }));
  return events;
}

namespace {

// Kimi's ids count the calls of the whole conversation; after a compaction the highest index that
// is still named goes on.
int64_t calls_of(const JsonValue& messages) {
  int64_t calls = 0;
  int64_t next = 0;
  for (const JsonValue& message : messages.items()) {
    const JsonValue* made = message.find("tool_calls");
    if (made == nullptr) continue;
    for (const JsonValue& call : made->items()) {
      ++calls;
      const JsonValue* id = call.find("id");
      const size_t colon = id == nullptr ? std::string::npos : id->as_string().rfind(':');
      if (colon == std::string::npos) continue;
      int64_t index = -1;
      const std::string& text = id->as_string();
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), index);
      if (index < int64_t{1} << 40) next = std::max(next, index + 1);
    }
  }
  return std::max(calls, next);
}

constexpr size_t kPromptEnd = 32;  // tokens: more than any prefix of a reply has

}  // namespace

std::string prompt_end(std::span<const int32_t> prompt, const text::Tokenizer& tokenizer) {
  return tokenizer.decode(prompt.last(std::min(prompt.size(), kPromptEnd)), /*keep_special=*/true);
}

ReplyReading reading_of(const ApiRequest& request, std::shared_ptr<const ReplyFormat> format,
                        std::span<const int32_t> prompt, const text::Tokenizer& tokenizer,
                        std::string random) {
  ReplyReading reading;
  reading.format = std::move(format);
  if (!request.tools.is_null()) reading.tools = std::make_shared<const OfferedTools>(request.tools);
  reading.prompt_end = prompt_end(prompt, tokenizer);
  reading.random = std::move(random);
  reading.calls_before = calls_of(request.messages);
  if (request.endpoint == Endpoint::kMessages) reading.id_prefix = "toolu_";
  reading.parallel = request.parallel_calls;
  reading.live = request.live_arguments;
  return reading;
}

const char* finish_name(protocol::FinishReason reason, int32_t calls) {
  if (reason == protocol::FinishReason::kLength) return "length";
  return calls > 0 ? "tool_calls" : "stop";
}

}  // namespace tandem::api
