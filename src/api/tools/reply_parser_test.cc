// Canonical replies of every family, whole and in all cuts.
#include "api/tools/reply_parser.h"

#include <utility>

#include <gtest/gtest.h>

namespace tandem::api {
namespace {

struct Case {
  const char* parser;
  const char* prompt_end;
  const char* reply;
  const char* content;
  const char* reasoning;
  const char* calls;  // "name{arguments};" one after another
};

// "|" stands for DeepSeek's wide bar and "_" for its low block in the markers of its cases.
constexpr Case kCases[] = {
    {"hermes", "",
     "<think>\nhm\n</think>\n\nHi.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
     "{\"a\": 1, \"s\": \"x </tool_call> \\u00e9\\/\"}}\n</tool_call>",
     "Hi.", "hm", "f{\"a\":1,\"s\":\"x </tool_call> é/\"};"},
    {"hermes", "",
     "<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\": "
     "\"g.h-i\"}\n</tool_call> after",
     " after", "", "f{};g.h-i{};"},
    {"hermes", "",
     "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
     "\"arguments\": \"{\\\"a\\\":null}\"}]</tool_call>",
     "", "", "f{};g{\"a\":null};"},
    {"hermes", "<think>\n", "open\n</think>\n\nText.", "Text.", "open", ""},
    {"hermes", "</think>\n\n", "{\"note\": 1} < <tool> <tool_cal",
     "{\"note\": 1} < <tool> <tool_cal", "", ""},
    {"hermes", "", "<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", "", ""},
    {"qwen3_xml", "<think>\n",
     "why\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n"
     "line </parameter> x\n  end\n\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=g>\n</function>\n</tool_call>",
     "", "why", "f{\"a\":1,\"s\":\"line </parameter> x\\n  end\\n\"};g{};"},
    {"qwen3_xml", "<think>\n",
     "no end <tool_call>\n<function=f>\n<parameter=u>\nnull\n<parameter=s>\n"
     "null\n</function>\n</tool_call>",
     "", "no end ", "f{\"u\":null,\"s\":\"null\"};"},
    {"glm", "<think>",
     "so</think>A.<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>[1, 2]</arg_value>"
     "<arg_key>s</arg_key><arg_value> <tool_call> </tool_call> \n</arg_value>"
     "</tool_call><tool_call>g</tool_call>",
     "A.", "so", "f{\"a\":[1,2],\"s\":\" <tool_call> </tool_call> \\n\"};g{};"},
    {"kimi_k2", "<think>",
     "t<|tool_calls_section_begin|> noise <|tool_call_begin|>functions.f:3"
     "<|tool_call_argument_begin|>{\"s\": \"<|tool_call_end|>\"} <|tool_call_end|>"
     "<|tool_call_begin|>g:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|> after",
     " after", "t", "f{\"s\":\"<|tool_call_end|>\"};g{};"},
    {"kimi_k3", "<|open|>think<|sep|>",
     "why<|close|>think<|sep|><|open|>response<|sep|>Text<|close|>response<|sep|><|open|>tools<|"
     "sep|>"
     "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"q&amp;a\" "
     "type=\"string\"<|sep|>"
     "1<|close|>argument<|sep|><|open|>argument key=\"n\" "
     "type=\"number\"<|sep|>1.50<|close|>argument"
     "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
     "Text", "why", "f{\"q&a\":\"1\",\"n\":1.50};"},
    {"deepseek_v3", "",
     "Hi<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{\"s\": "
     "\"```\\n\"}\n"
     "```<|tool_call_end|>\n<|tool_call_begin|>g<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>",
     "Hi", "", "f{\"s\":\"```\\n\"};g{};"},
    {"deepseek_v32", "</think>",
     "Hi.\n\n<|DSML|function_calls>\n<|DSML|invoke name=\"f\">\n<|DSML|parameter name=\"s\" "
     "string=\"true\">a <b> \"</|DSML|parameter>\n<|DSML|parameter name=\"a\" "
     "string=\"false\">{\"x\": "
     "[true]}</|DSML|parameter>\n</|DSML|invoke>\n<|DSML|invoke "
     "name=\"g\"/>\n</|DSML|function_calls>",
     "Hi.", "", "f{\"s\":\"a <b> \\\"\",\"a\":{\"x\":[true]}};g{};"},
    {"llama3_json", "",
     "{\"name\": \"f\", \"parameters\": {\"s\": \"a;b\"}}; {\"name\": \"g\", "
     "\"parameters\": {}}",
     "", "", "f{\"s\":\"a;b\"};g{};"},
    {"llama3_json", "", "Sure <|python_tag|>{\"name\": \"h\", \"arguments\": {}}", "Sure ", "",
     "h{};"},
    {"llama3_json", "", "{\"name\": \"unknown\", \"parameters\": {}}",
     "{\"name\": \"unknown\", \"parameters\": {}}", "", ""},
    {"llama4_pythonic", "", "[f(s='it\\'s', a=[1, None, {'k': True}]), g()]", "", "",
     "f{\"s\":\"it's\",\"a\":[1,null,{\"k\":true}]};g{};"},
    {"llama4_pythonic", "", "[1, 2] is a list", "[1, 2] is a list", "", ""},
    {"mistral", "<think>", "[THINK][THINK] a[/THINK]b", "b", "[THINK] a", ""},
    {"mistral", "",
     "[THINK]a [TOOL_CALLS] b[/THINK]Hi[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": "
     "\"]\"}[TOOL_CALLS]g[ARGS]{}",
     "Hi", "a [TOOL_CALLS] b", "f{\"a\":\"]\"};g{};"},
    {"mistral", "",
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"arguments\": {\"name\": 1}, "
     "\"name\": \"g\"}]",
     "", "", "f{};g{\"name\":1};"},
    {"gemma4", "",
     "<|channel>thought\nhm\n<channel|>Hi <|tool_call>call:f{a:[],n:-1e-05,s:<|\"|>x,} "
     "<tool_call|> y<|\"|>,key with space:{B:1}}<tool_call|><|tool_call>call:g{}<tool_call|>",
     "Hi ", "hm",
     "f{\"a\":[],\"n\":-1e-05,\"s\":\"x,} <tool_call|> y\",\"key with space\":{\"B\":1}};g{};"},
    {"harmony", "<|start|>assistant",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
     "Plan."
     "<|end|><|start|>assistant to=functions.f<|channel|>commentary "
     "<|constrain|>json<|message|>{\"s\": "
     "\"<|end|>\"}<|call|><|start|>assistant<|channel|>commentary to=functions.g json<|message|>{}"
     "<|call|><|start|>assistant<|channel|>final<|message|>Done.",
     "Plan.Done.", "hm", "f{\"s\":\"<|end|>\"};g{};"},
    {"harmony", "<|start|>assistant",
     "<|channel|>commentary to=assistant<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
     "<|channel|>final<|message|>{\"name\": \"f\", \"arguments\": {}}",
     "{\"name\": \"f\", \"arguments\": {}}", "hm", ""},
};

constexpr const char* kTools = R"([
 {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
   "a":{"type":["integer","array","object"]},"s":{"type":"string"},"u":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}},
 {"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}])";

std::string spelled(std::string text, const char* parser) {
  if (!std::string_view(parser).starts_with("deepseek")) return text;
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  };
  replace("|", "\xEF\xBD\x9C");
  for (const char* words :
       {"tool_calls_begin", "tool_calls_end", "tool_call_begin", "tool_call_end", "tool_sep"}) {
    std::string low = words;
    for (size_t at = low.find('_'); at != std::string::npos; at = low.find('_', at))
      low.replace(at, 1, "\xE2\x96\x81");
    replace(words, low);
  }
  return text;
}

std::string show(const ReplyEvents& events) {
  std::string text;
  std::string reasoning;
  std::string calls;
  for (const ReplyEvent& event : events) {
    if (const auto* said = std::get_if<TextDelta>(&event)) text += said->text;
    if (const auto* thought = std::get_if<ReasoningDelta>(&event)) reasoning += thought->text;
    if (const auto* start = std::get_if<CallStart>(&event)) calls += start->name;
    if (const auto* some = std::get_if<CallArguments>(&event)) calls += some->text;
    if (const auto* end = std::get_if<CallEnd>(&event)) calls += end->complete ? ";" : "...";
  }
  return "text: " + text + "\nreasoning: " + reasoning + "\ncalls: " + calls;
}

struct Model {
  std::shared_ptr<const ReplyFormat> format;
  ToolTable tools;
  std::string prompt_end;
  bool live = false;

  ReplyEvents parse(const std::vector<std::string>& pieces, bool cut = false) const {
    ReplySetup setup;
    setup.tools = &tools;
    setup.ids.random = "0";
    setup.prompt_end = prompt_end;
    setup.live = live;
    ReplyParser parser(*format, std::move(setup));
    ReplyEvents all;
    for (const std::string& piece : pieces) {
      for (ReplyEvent& event : parser.push(piece, {})) all.push_back(std::move(event));
    }
    for (ReplyEvent& event : parser.finish(cut)) all.push_back(std::move(event));
    return all;
  }
};

const JsonValue& tools_json() {
  static const JsonValue kJson = *parse_json(kTools);
  return kJson;
}

Model model_of(const Case& of) {
  return {
      *ReplyFormat::create({of.parser, of.parser}, std::vector<std::pair<std::string, int32_t>>()),
      ToolTable(tools_json()), spelled(of.prompt_end, of.parser)};
}

// Whole characters, as the detokenizer gives them.
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80 && !out.empty()) {
      out.back() += c;
    } else {
      out.emplace_back(1, c);
    }
  }
  return out;
}

class Replies : public testing::TestWithParam<Case> {};

TEST_P(Replies, MeanWhatTheirFamilyWrites) {
  const Case& of = GetParam();
  const std::string expected =
      std::string("text: ") + of.content + "\nreasoning: " + of.reasoning + "\ncalls: " + of.calls;
  Model model = model_of(of);
  EXPECT_EQ(show(model.parse({spelled(of.reply, of.parser)})), expected);
  model.live = true;
  EXPECT_EQ(show(model.parse({spelled(of.reply, of.parser)})), expected) << "live";
}

TEST_P(Replies, MeanTheSameInAnyCuts) {
  const Case& of = GetParam();
  const std::string reply = spelled(of.reply, of.parser);
  const std::vector<std::string> units = characters(reply);
  for (const bool live : {false, true}) {
    Model model = model_of(of);
    model.live = live;
    const std::string whole = show(model.parse({reply}));
    std::string head;
    for (const std::string& unit : units) {
      head += unit;
      ASSERT_EQ(show(model.parse({head, reply.substr(head.size())})), whole)
          << "cut after: " << head;
    }
    for (size_t group = 1; group <= 8; ++group) {
      std::vector<std::string> pieces;
      for (size_t i = 0; i < units.size(); ++i) {
        if (i % group == 0) pieces.emplace_back();
        pieces.back() += units[i];
      }
      ASSERT_EQ(show(model.parse(pieces)), whole) << "in groups of " << group;
    }
  }
}

// A reply that breaks off: calls that were complete stay, the last is told to nobody, and what is
// told is what the whole reply says, up to there.
TEST_P(Replies, BreakOffWithoutHalfACall) {
  const Case& of = GetParam();
  const std::string reply = spelled(of.reply, of.parser);
  const Model model = model_of(of);
  const std::string calls = of.calls;
  std::string head;
  for (const std::string& unit : characters(reply)) {
    head += unit;
    const std::string told = show(model.parse({head}, true));
    const std::string made = told.substr(told.rfind("calls: ") + 7);
    ASSERT_TRUE(calls.starts_with(made)) << "after " << head << " told " << told;
    ASSERT_TRUE(made.empty() || made.ends_with(';')) << "after " << head << " told " << told;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Replies, testing::ValuesIn(kCases));

// Where the vocabulary has a token for a marker, only the token is one.
TEST(ReplyParser, TakesLettersForTextWhereTheMarkerIsAToken) {
  const auto format =
      *ReplyFormat::create({"hermes", "hermes"}, {{"<tool_call>", 7}, {"</tool_call>", 8}});
  const ToolTable tools(tools_json());
  ReplySetup setup;
  setup.tools = &tools;
  ReplyParser parser(*format, std::move(setup));
  const std::string text = "say <tool_call> or <tool_call>{\"name\": \"f\"}</tool_call>";
  const auto at = static_cast<uint32_t>(text.rfind("<tool_call>"));
  const std::vector<protocol::TokenMark> marks = {
      {at, 7}, {static_cast<uint32_t>(text.rfind("</tool_call>")), 8}};
  EXPECT_EQ(format->kept_tokens(true), (std::vector<int32_t>{7, 8}));
  EXPECT_TRUE(format->kept_tokens(false).empty());
  ReplyEvents events = parser.push(text, marks);
  for (ReplyEvent& event : parser.finish(false)) events.push_back(std::move(event));
  EXPECT_EQ(show(events), "text: say <tool_call> or \nreasoning: \ncalls: f{};");
}

TEST(ReplyParser, TellsTheTextOfACallThatTheModelDidNotFinish) {
  const Model model = model_of(kCases[0]);
  const std::string half = "Hm <tool_call>{\"name\": \"f\"";
  EXPECT_EQ(show(model.parse({half}, false)), "text: " + half + "\nreasoning: \ncalls: ");
  EXPECT_EQ(show(model.parse({half}, true)), "text: Hm \nreasoning: \ncalls: ");
}

TEST(ReplyParser, StreamsArgumentsBeforeTheyAreComplete) {
  Model model = model_of(kCases[0]);
  model.live = true;
  const auto told =
      show(model.parse({"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"ab"}, true));
  EXPECT_EQ(told, "text: \nreasoning: \ncalls: f{\"s\":\"ab...");
}

TEST(ReplyParser, GivesKimisIdsOverTheWholeConversation) {
  CallIds ids;
  ids.style = CallIds::Style::kKimi;
  ids.first = 5;
  EXPECT_EQ(call_id(ids, 1, "f"), "functions.f:6");
  ids = {.style = CallIds::Style::kNine, .random = "0123456789abcdef0123456789abcdef"};
  EXPECT_EQ(call_id(ids, 0, "f").size(), 9U);
  EXPECT_NE(call_id(ids, 0, "f"), call_id(ids, 1, "f"));
}

TEST(ReplyParser, TakesDeepNestingForText) {
  const Model model = model_of(kCases[0]);
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(100000, '[');
  EXPECT_EQ(show(model.parse({deep})), "text: " + deep + "\nreasoning: \ncalls: ");
}

TEST(ReplyFormat, IsKnownByTheTemplate) {
  const auto text = [](const char* source) { return std::string(recognized(source)); };
  EXPECT_EQ(text("... <tool_call> ... {{ tool_call.arguments | tojson }}"), "hermes");
  EXPECT_EQ(text("<tool_call>\n<function=..."), "qwen3_xml");
  EXPECT_EQ(text("<tool_call><arg_key>..<arg_value>"), "glm");
  EXPECT_EQ(text("<|im_start|>"), "hermes");
  EXPECT_EQ(text("[INST] [TOOL_CALLS]"), "mistral");
  EXPECT_EQ(text("<|start|>assistant<|channel|>final<|message|>"), "harmony");
  EXPECT_EQ(text("{{ messages[0].content }}"), "none");
  const auto unknown =
      ReplyFormat::create({"nonsense", "none"}, std::vector<std::pair<std::string, int32_t>>());
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, "unknown_parser");
}

}  // namespace
}  // namespace tandem::api
