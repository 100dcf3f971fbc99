#include "loadgen/client/answer_reader.h"

#include <algorithm>
#include <utility>

namespace tandem::loadgen {

namespace {

std::string_view text_at(const JsonValue& json, std::string_view key) {
  const JsonValue* const value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string_view();
}

constexpr int64_t kMostCount = int64_t{1} << 40;  // of tokens, from a stranger

int64_t count_at(const JsonValue& json, std::string_view key) {
  const JsonValue* const value = json.find(key);
  const int64_t count = value == nullptr ? -1 : value->as_integer().value_or(-1);
  return count > kMostCount ? -1 : count;
}

}  // namespace

bool AnswerReader::feed(std::string_view bytes, double now) {
  if (error_ != ErrorKind::kNone) return false;
  if (!framer_.feed(bytes)) {
    error_ = ErrorKind::kBad;
    error_text_ = "an event of more than 1 MiB";
    return false;
  }
  while (const auto frame = framer_.next_view()) {
    if (!frame->has_data) continue;
    if (frame->done()) {
      done_ = true;
      continue;
    }
    const auto json = parse_json(frame->data);
    if (!json || !json->is_object()) {
      error_ = ErrorKind::kBad;
      error_text_ = "an event that is not JSON";
      return false;
    }
    take(*json, now);
    if (error_ != ErrorKind::kNone) return false;
  }
  return true;
}

void AnswerReader::piece(std::string_view text, double now) {
  if (pieces_ == 0) {
    first_ = now;
  } else if (gaps_.size() < kMostGaps) {
    gaps_.push_back(now - last_);
  }
  last_ = now;
  ++pieces_;
  if (keep_text_ && text_.size() < kMostText) text_ += text.substr(0, kMostText - text_.size());
}

void AnswerReader::take(const JsonValue& json, double now) {
  if (const JsonValue* const error = json.find("error"); error != nullptr && !error->is_null()) {
    error_ = ErrorKind::kStream;
    const std::string_view message = text_at(*error, "message");
    error_text_ = message.empty() ? error->dump() : std::string(message);
    return;
  }
  const JsonValue* const choices = json.find("choices");
  if (choices != nullptr && !choices->items().empty()) {
    const JsonValue& choice = choices->items().front();
    std::string_view text = text_at(choice, "text");
    bool carries = !text.empty();
    if (const JsonValue* const delta = choice.find("delta"); delta != nullptr) {
      text = text_at(*delta, "content");
      const JsonValue* const calls = delta->find("tool_calls");
      carries = carries || !text.empty() || !text_at(*delta, "reasoning_content").empty() ||
                !text_at(*delta, "reasoning").empty() ||
                (calls != nullptr && !calls->items().empty());
    }
    if (carries) piece(text, now);
    const JsonValue* const reason = choice.find("finish_reason");
    finished_ = finished_ || (reason != nullptr && reason->is_string());
  }
  if (const JsonValue* const usage = json.find("usage"); usage != nullptr && usage->is_object())
    take_usage(*usage);
}

void AnswerReader::take_usage(const JsonValue& usage) {
  prompt_tokens_ = count_at(usage, "prompt_tokens");
  completion_tokens_ = count_at(usage, "completion_tokens");
  if (const JsonValue* const details = usage.find("prompt_tokens_details"); details != nullptr)
    cached_tokens_ = std::max<int64_t>(0, count_at(*details, "cached_tokens"));
}

int64_t AnswerReader::take_new_pieces() { return pieces_ - std::exchange(told_, pieces_); }

void AnswerReader::finish(RequestRecord& record) {
  record.first = first_;
  record.last = last_;
  record.pieces = pieces_;
  record.cached_tokens = cached_tokens_;
  record.counted_by_server = prompt_tokens_ >= 0 && completion_tokens_ >= 0;
  record.output_tokens = record.counted_by_server ? completion_tokens_ : pieces_;
  if (record.counted_by_server) record.input_tokens = prompt_tokens_;
  record.error = error_;
  if (error_ != ErrorKind::kNone) return;
  if (!done_ && !finished_) {
    record.error = ErrorKind::kBroken;
    error_text_ = "the stream ended without a finish reason or [DONE]";
  } else if (pieces_ == 0) {
    record.error = ErrorKind::kEmpty;
  }
}

}  // namespace tandem::loadgen
