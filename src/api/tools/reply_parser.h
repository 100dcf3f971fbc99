// ReplyParser: what a model generates, token by token, to what it means (reply_events.h).
//
//   auto format = ReplyFormat::create(names, tokenizer);       // once a model
//   // the engine keeps the spelling of format.kept_tokens() in the text and marks it
//   ReplyParser parser(format, setup);                         // once a choice
//   events = parser.push(text, marks); ... events = parser.finish(cut);
//
// Any cuts give the same events, joined together. Linear in the text. One owner each; a ReplyFormat
// is immutable and outlives its parsers.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/tools/call_layout.h"
#include "api/tools/call_sink.h"
#include "api/tools/cursor.h"
#include "api/tools/syntax.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace tandem::api {

struct Family;

// By name, as --tool-parser and --reasoning-parser take them: the families of parser_names(),
// "none", or "auto" (both: what the model's template and vocabulary say).
struct ParserNames {
  std::string tools = "auto";
  std::string reasoning = "auto";
};
std::vector<std::string> parser_names();
// The family whose calls a chat template speaks of, or "none".
std::string_view recognized(std::string_view chat_template);

class ReplyFormat {
 public:
  // `chat_template`: its text, empty when there is none. Errors: 400 "unknown_parser" with the
  // names there are.
  static Result<std::shared_ptr<const ReplyFormat>> create(const ParserNames& names,
                                                           std::string_view chat_template,
                                                           const text::Tokenizer& tokenizer);
  // For tests: `tokens` says which spellings are one token, and its id; -1: none is.
  static Result<std::shared_ptr<const ReplyFormat>> create(
      const ParserNames& names, const std::vector<std::pair<std::string, int32_t>>& tokens,
      std::string_view chat_template = {});

  std::string_view tool_parser() const;
  std::string_view reasoning_parser() const;
  CallIds::Style ids() const { return ids_; }
  // Tokens whose spelling must stand in the text. Without tools the markers of calls are left out.
  std::vector<int32_t> kept_tokens(bool tools) const;
  // How a reply begins whose prompt ends with this text (control tokens spelled).
  Opening opening(std::string_view prompt_end) const;
  std::unique_ptr<ReplyMachine> machine(bool tools, Opening opening) const;
  // How calls are written; nothing: of no family. Errors: 400 when a grammar cannot say it.
  Result<std::optional<CallLayout>> layout(Opening opening) const;
  const ReasoningStyle& style() const { return style_; }

 private:
  ReplyFormat() = default;
  static Result<std::shared_ptr<const ReplyFormat>> build(
      const Family* tools, const Family* reasoning, CallIds::Style ids,
      std::string_view chat_template, const std::vector<std::pair<std::string, int32_t>>& tokens);

  const Family* tools_ = nullptr;      // null: none
  const Family* reasoning_ = nullptr;  // null: none
  CallIds::Style ids_ = CallIds::Style::kRandom;
  Markers markers_;
  ReasoningStyle style_;
  Markers kept_;               // tokens that are no markers but parts of them
  std::string chat_template_;  // may be empty
};

struct ReplySetup {
  const ToolTable* tools = nullptr;  // null or empty: calls are not looked for; outlives the parser
  CallIds ids;
  std::string prompt_end;  // the last tokens of the prompt as text, control tokens spelled
  bool live = false;       // arguments are told before their call is complete
};

class ReplyParser {
 public:
  ReplyParser(const ReplyFormat& format, ReplySetup setup);

  ReplyEvents push(std::string_view text, std::span<const protocol::TokenMark> marks);
  // `cut`: the length was used up. A call that is not complete is then told to nobody; where the
  // model itself stopped inside one, its text is.
  ReplyEvents finish(bool cut);
  // Complete calls so far.
  int32_t calls() const { return sink_.calls(); }

 private:
  ToolTable none_;
  Cursor cursor_;
  CallSink sink_;
  std::unique_ptr<ReplyMachine> machine_;
};

}  // namespace tandem::api
