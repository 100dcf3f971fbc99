// A reply of any bytes, in any cuts, for every family: never breaks, and means the same as whole.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/tools/reply_parser.h"

namespace {

using namespace tandem;

struct Told {
  std::string text;
  std::string reasoning;
  std::string calls;
  void add(const api::ReplyEvents& events) {
    for (const api::ReplyEvent& event : events) {
      if (const auto* said = std::get_if<api::TextDelta>(&event)) text += said->text;
      if (const auto* thought = std::get_if<api::ReasoningDelta>(&event))
        reasoning += thought->text;
      if (const auto* start = std::get_if<api::CallStart>(&event))
        calls += "\n" + start->name + " ";
      if (const auto* some = std::get_if<api::CallArguments>(&event)) calls += some->text;
      if (const auto* end = std::get_if<api::CallEnd>(&event)) {
        const std::string arguments = calls.substr(calls.rfind('\n'));
        const size_t brace = arguments.find(" {");
        // What is complete is an object.
        if (end->complete && brace == std::string::npos) std::abort();
        calls += end->complete ? ";" : "...";
      }
    }
  }
  bool operator==(const Told&) const = default;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  static const JsonValue kTools = *parse_json(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":)"
      R"({"a":{"type":["integer","null"]},"s":{"type":"string"}}}}}])");
  const api::ToolTable tools(kTools);
  static const std::vector<std::string> kNames = api::parser_names();
  const std::string& name = kNames[data[0] % kNames.size()];
  const bool live = (data[1] & 1) != 0;
  const bool cut = (data[1] & 2) != 0;
  const bool open = (data[1] & 4) != 0;
  const size_t step = 1 + data[2] % 16;
  std::string text = sanitize_utf8({reinterpret_cast<const char*>(data) + 3, size - 3});
  const auto format =
      *api::ReplyFormat::create({name, name}, std::vector<std::pair<std::string, int32_t>>());
  const auto run = [&](bool whole) {
    api::ReplySetup setup;
    setup.tools = &tools;
    setup.ids.random = "0";
    setup.live = live;
    if (open) setup.prompt_end = "<think>";
    api::ReplyParser parser(*format, std::move(setup));
    Told told;
    for (size_t at = 0; at < text.size();) {
      size_t end = whole ? text.size() : std::min(text.size(), at + step);
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
      told.add(parser.push(std::string_view(text).substr(at, end - at), {}));
      at = end;
    }
    told.add(parser.finish(cut));
    return told;
  };
  if (!(run(true) == run(false))) std::abort();
  return 0;
}
