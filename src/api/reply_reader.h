// ReplyReader: the events of one choice as its engine tells them, to what they mean. All dialects
// read replies through it. One owner.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/openai.h"
#include "api/tools/reply_parser.h"
#include "protocol/token_event.h"

namespace tandem::api {

// A request's tools and the table over them, which borrows from it.
struct OfferedTools {
  explicit OfferedTools(JsonValue tools) : json(std::move(tools)), table(json) {}
  OfferedTools(const OfferedTools&) = delete;
  OfferedTools& operator=(const OfferedTools&) = delete;
  const JsonValue json;
  const ToolTable table;
};

// How the replies to one prompt are read. The format may be null: all is text.
struct ReplyReading {
  std::shared_ptr<const ReplyFormat> format;
  std::shared_ptr<const OfferedTools> tools;  // may be null
  std::string prompt_end;                     // its last tokens as text, control tokens spelled
  std::string random;  // for ids: at least 96 random bits in hex, of this request alone
  std::string id_prefix = "call_";
  int64_t calls_before = 0;  // of the conversation
  bool parallel = true;      // false: only the first call is told
  bool live = false;         // arguments are told before their call is complete
};

class ReplyReader {
 public:
  // `choice` of all the request's.
  ReplyReader(const ReplyReading& reading, size_t choice);

  ReplyEvents push(const protocol::TextEvent& event);
  ReplyEvents finish(protocol::FinishReason reason);
  // Complete calls so far.
  int32_t calls() const { return calls_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  ReplyEvents kept(ReplyEvents events);

  std::shared_ptr<const ReplyFormat> format_;
  std::shared_ptr<const OfferedTools> tools_;
  std::unique_ptr<ReplyParser> parser_;  // null: all is text
  bool parallel_;
  int32_t calls_ = 0;
  bool reasoning_ = false;  // what was read last
  int64_t reasoning_tokens_ = 0;
};

// How the reply to a prompt (its tokens) of a chat is read. `random`: hex, of this request alone.
ReplyReading reading_of(const ApiRequest& request, std::shared_ptr<const ReplyFormat> format,
                        std::span<const int32_t> prompt, const text::Tokenizer& tokenizer,
                        std::string random);

// The end of a prompt as text, control tokens spelled: what says how its reply begins.
std::string prompt_end(std::span<const int32_t> prompt, const text::Tokenizer& tokenizer);

// What the finish reason of a choice is called in the chat dialect.
const char* finish_name(protocol::FinishReason reason, int32_t calls);

}  // namespace tandem::api
