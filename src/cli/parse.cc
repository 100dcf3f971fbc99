// `tandem parse`: recorded replies to what they mean, one JSON object a line in, one a line out.
// For checking a family's parser against recordings, in any cuts.
#include <cstdio>
#include <iostream>
#include <string>

#include "api/reply_reader.h"
#include "base/json_value.h"
#include "cli/commands.h"
#include "config/options.h"

namespace tandem::cli {
namespace {

using api::ReplyEvent;

std::string text_of(const JsonValue& line, std::string_view key, const std::string& fallback = "") {
  const JsonValue* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : fallback;
}

bool flag_of(const JsonValue& line, std::string_view key) {
  const JsonValue* value = line.find(key);
  return value != nullptr && value->as_bool();
}

// What a client that joins the events together has.
struct Told {
  std::string content;
  std::string reasoning;
  JsonValue::Array calls;

  void add(const ReplyEvent& event) {
    if (const auto* text = std::get_if<api::TextDelta>(&event)) {
      content += text->text;
    } else if (const auto* thought = std::get_if<api::ReasoningDelta>(&event)) {
      reasoning += thought->text;
    } else if (const auto* start = std::get_if<api::CallStart>(&event)) {
      calls.push_back(JsonValue::object({{"id", JsonValue::string(start->id)},
                                         {"name", JsonValue::string(start->name)},
                                         {"arguments", JsonValue::string("")}}));
    } else if (const auto* arguments = std::get_if<api::CallArguments>(&event)) {
      JsonValue* given = calls.back().find("arguments");
      *given = JsonValue::string(given->as_string() + arguments->text);
    } else if (const auto* end = std::get_if<api::CallEnd>(&event); !end->complete) {
      calls.back().set("complete", JsonValue::boolean(false));
    }
  }
};

// {"tool_parser", "reasoning_parser", "tokens": {SPELLING: ID}, "tools", "prompt_end", "cut",
// "live", "pieces": [{"text", "marks": [[OFFSET, ID], ...]}, ...]}
Result<std::string> parse_line(const std::string& text) {
  TANDEM_TRY(line, parse_json(text));
  std::vector<std::pair<std::string, int32_t>> tokens;
  if (const JsonValue* known = line.find("tokens")) {
    for (const auto& [spelling, id] : known->members())
      tokens.emplace_back(spelling, static_cast<int32_t>(id.as_integer().value_or(-1)));
  }
  const std::string tool_parser = text_of(line, "tool_parser", "none");
  TANDEM_TRY(format, api::ReplyFormat::create(
                         {tool_parser, text_of(line, "reasoning_parser", tool_parser)}, tokens));
  const JsonValue* tools = line.find("tools");
  const api::OfferedTools offered(tools == nullptr ? JsonValue() : *tools);
  api::ReplySetup setup;
  setup.tools = &offered.table;
  setup.ids.style = format->ids();
  setup.ids.random = "0";
  setup.prompt_end = text_of(line, "prompt_end");
  setup.live = flag_of(line, "live");
  api::ReplyParser parser(*format, std::move(setup));
  Told told;
  const JsonValue* pieces = line.find("pieces");
  if (pieces == nullptr) return invalid_request("there are no \"pieces\"", "/pieces");
  for (const JsonValue& piece : pieces->items()) {
    std::vector<protocol::TokenMark> marks;
    if (const JsonValue* given = piece.find("marks")) {
      for (const JsonValue& mark : given->items()) {
        if (mark.items().size() != 2)
          return invalid_request("a mark is an offset and an id", "/pieces");
        marks.push_back({static_cast<uint32_t>(mark.items()[0].as_integer().value_or(0)),
                         static_cast<int32_t>(mark.items()[1].as_integer().value_or(-1))});
      }
    }
    for (const ReplyEvent& event : parser.push(text_of(piece, "text"), marks)) told.add(event);
  }
  for (const ReplyEvent& event : parser.finish(flag_of(line, "cut"))) told.add(event);
  JsonValue out = JsonValue::object();
  out.set("content", JsonValue::string(told.content));
  out.set("reasoning", JsonValue::string(told.reasoning));
  out.set("calls", JsonValue::array(told.calls));
  return out.dump();
}

}  // namespace

int run_parse(const Arguments& arguments) {
  config::Options options(
      "parse",
      "Reads replies of models from stdin, one JSON object a line: {\"tool_parser\", "
      "\"reasoning_parser\", \"tokens\": {SPELLING: ID}, \"tools\", \"prompt_end\", \"cut\", "
      "\"live\", "
      "\"pieces\": [{\"text\", \"marks\": [[OFFSET, ID]]}]}. Writes a line for each: {\"content\", "
      "\"reasoning\", \"calls\"}.");
  options.example("tandem parse < replies.jsonl");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    const auto told = parse_line(line);
    if (!told) {
      JsonValue error = JsonValue::object({{"error", JsonValue::string(told.error().message)}});
      std::printf("%s\n", error.dump().c_str());
    } else {
      std::printf("%s\n", told->c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace tandem::cli
