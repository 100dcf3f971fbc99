// Every family: what a model with random weights writes under the grammar of its calls is read back
// by the family's parser as calls whose arguments satisfy their schemas.
#include "api/tools/call_layout.h"

#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "api/api_test_support.h"
#include "api/custom_tools.h"
#include "api/reply_grammar.h"
#include "api/tools/families.h"
#include "api/tools/reply_parser.h"
#include "grammar/grammar.h"

namespace tandem::api {
namespace {

constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"s":{"type":"string","maxLength":9},"i":{"type":"integer","minimum":-5,"maximum":120},
        "b":{"type":"boolean"},"n":{"type":["string","null"],"maxLength":6},"e":{"enum":["a b","c",7,null,true]}},
        "required":["s","i","n","e"],"additionalProperties":false})",
    R"({"type":"object","properties":{"list":{"type":"array","items":{"$ref":"#/$defs/p"},"maxItems":2},
        "o":{"type":"object","properties":{"x y":{"type":"string","maxLength":5},"z":{"type":["number","string"],"maximum":9,"maxLength":4}},
        "required":["x y","z"],"additionalProperties":false}},"required":["list","o"],"additionalProperties":false,
        "$defs":{"p":{"anyOf":[{"type":"string","maxLength":5},{"type":"null"},{"type":"array","items":{"type":"boolean"},"maxItems":2}]}}})",
    R"({"type":"object","properties":{"p":{"type":"string","pattern":"^[a-z]{2,4}(-\\d)?$"},"c":{"const":"</x>"},
        "u":{"anyOf":[{"type":"integer","maximum":50},{"type":"string","maxLength":4},{"type":"object","properties":{},"additionalProperties":false}]}},
        "required":["u"],"additionalProperties":{"type":"integer"},"maxProperties":4})",
    R"({"type":"object","properties":{}, "additionalProperties":false})",
};

struct Variant {
  const char* parser;
  const char* chat_template;
  const char* prompt_end;
  bool tokens;  // markers are tokens
};
constexpr Variant kVariants[] = {
    {"hermes", "", "", false},
    {"hermes", "", "<think>\n", true},
    {"smollm2", "", "", false},
    {"qwen3_xml", "", "", false},
    {"qwen3_xml", "", "</think>\n\n", true},
    {"glm", "", "", false},
    {"glm", "</arg_key>\n<arg_value>", "<think>", true},
    {"kimi_k2", "", "", true},
    {"kimi_k3", "", "", true},
    {"kimi_k3", "", "<|open|>think<|sep|>", true},
    {"deepseek_v3", "", "", true},
    {"deepseek_v3", "```json", "", true},
    {"deepseek_v32", "", "</think>", false},
    {"deepseek_v32",
     "\xEF\xBD\x9C"
     "DSML\xEF\xBD\x9Ctool_calls",
     "", true},
    {"llama3_json", "", "", false},
    {"llama4_pythonic", "", "", true},
    {"mistral", "[TOOL_CALLS]", "", true},
    {"mistral", "[TOOL_CALLS][ARGS]", "", true},
    {"mistral", "[TOOL_CALLS][CALL_ID][ARGS]", "", true},
    {"gemma4", "", "", true},
    {"harmony", "", "", true},
    {"harmony", "", "<|channel|>analysis<|message|>", true},
};

constexpr int32_t kEos = 256;
constexpr int32_t kFirst = 257;

// The vocabulary of bytes and the family's markers.
struct Model {
  std::vector<std::pair<std::string, int32_t>> tokens;
  std::shared_ptr<const ReplyFormat> format;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  std::string prompt_end;

  std::string spelling(int32_t token) const {
    return token < kEos ? std::string(1, static_cast<char>(token))
                        : tokens[static_cast<size_t>(token - kFirst)].first;
  }
};

Model model_of(const Variant& of) {
  Model out;
  const Family& family = *find_family(of.parser);
  const auto add = [&](std::string_view text) {
    const auto same = [&](const auto& one) { return one.first == text; };
    if (std::ranges::none_of(out.tokens, same))
      out.tokens.emplace_back(std::string(text), kFirst + static_cast<int32_t>(out.tokens.size()));
  };
  if (of.tokens && family.kept.empty()) {
    for (const std::string_view marker : family.markers) {
      if (marker != "<function=") add(marker);
    }
  }
  if (of.tokens) {
    for (const std::string_view part : family.kept) add(part);
    for (const std::string_view marker : family.reasoning) add(marker);
  }
  out.format = *ReplyFormat::create({of.parser, of.parser}, out.tokens, of.chat_template);
  grammar::VocabularyTable table;
  for (int byte = 0; byte < 256; ++byte) table.bytes.emplace_back(1, static_cast<char>(byte));
  table.bytes.resize(kFirst + out.tokens.size());
  table.end_of_generation = {kEos};
  for (const auto& [name, id] : out.tokens) {
    table.special.push_back({name, id});
    if (name == "<|call|>") table.end_of_generation.push_back(id);
  }
  out.vocabulary = std::make_shared<const grammar::Vocabulary>(std::move(table));
  out.prompt_end = of.prompt_end;
  return out;
}

// A random writer, in love with structure: so texts stay short.
class Writer {
 public:
  Writer(const Model& model, const std::shared_ptr<const grammar::Grammar>& grammar, uint32_t seed)
      : model_(model), matcher_(grammar), random_(seed) {}

  bool say(std::string_view letters) {
    for (const char c : letters) {
      if (!take(static_cast<unsigned char>(c))) return false;
    }
    return true;
  }
  bool take(int32_t token) {
    if (!matcher_.accept(token)) return false;
    if (token == kEos) return true;
    if (token >= kFirst) marks.push_back({static_cast<uint32_t>(text.size()), token});
    text += model_.spelling(token);
    return true;
  }
  // False: it does not end.
  bool finish() {
    grammar::TokenMask mask;
    for (int step = 0; step < 3000; ++step) {
      if (matcher_.finished()) return true;
      const auto made = matcher_.mask(mask);
      EXPECT_TRUE(made) << made.error().message << " after " << text;
      if (!made) return false;
      if (mask.has(kEos) && random_() % 2 == 0) return true;
      std::vector<int32_t> all;
      std::vector<int32_t> structure;
      for (int32_t token = 0; token < static_cast<int32_t>(mask.tokens()); ++token) {
        if (!mask.has(token)) continue;
        all.push_back(token);
        constexpr std::string_view kStructure = "<>\"'{}[](),:=/\n";
        if (token > kEos ||
            (token < kEos && kStructure.find(static_cast<char>(token)) != std::string::npos))
          structure.push_back(token);
      }
      if (ends_texts && all.size() > 128 && random_() % 4 == 0) {
        spell(kEnds[random_() % std::size(kEnds)]);
        continue;
      }
      const bool structural = !structure.empty() && random_() % 3 == 0;
      const auto& from = structural ? structure : all;
      const int32_t next = from[random_() % from.size()];
      if (!take(next)) ADD_FAILURE() << "the mask lied";
      if (next == kEos || (next >= kFirst && model_.spelling(next) == "<|call|>")) return true;
    }
    return false;
  }

  std::string text;
  std::vector<protocol::TokenMark> marks;
  bool ends_texts = false;  // tries now and then what ends texts that are raw

 private:
  static constexpr std::string_view kEnds[] = {"\n</parameter>", "</arg_value>",
                                               "</\xEF\xBD\x9C"
                                               "DSML\xEF\xBD\x9Cparameter>"};

  // As far as the grammar allows, in tokens where there are any.
  void spell(std::string_view letters) {
    while (!letters.empty()) {
      const auto token = std::ranges::find_if(
          model_.tokens, [&](const auto& one) { return letters.starts_with(one.first); });
      if (token != model_.tokens.end() && take(token->second)) {
        letters.remove_prefix(token->first.size());
      } else if (take(static_cast<unsigned char>(letters[0]))) {
        letters.remove_prefix(1);
      } else {
        return;
      }
    }
  }

  const Model& model_;
  grammar::Matcher matcher_;
  std::minstd_rand random_;
};

struct Said {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
};

Said read(const Model& model, const JsonValue& tools, const Writer& writer) {
  const ToolTable table(tools);
  ReplySetup setup;
  setup.tools = &table;
  setup.prompt_end = model.prompt_end;
  ReplyParser parser(*model.format, std::move(setup));
  ReplyEvents events = parser.push(writer.text, writer.marks);
  for (ReplyEvent& event : parser.finish(false)) events.push_back(std::move(event));
  Said out;
  for (const ReplyEvent& event : events) {
    if (const auto* said = std::get_if<TextDelta>(&event)) out.text += said->text;
    if (const auto* start = std::get_if<CallStart>(&event)) out.calls.emplace_back(start->name, "");
    if (const auto* some = std::get_if<CallArguments>(&event))
      out.calls.back().second += some->text;
    if (const auto* end = std::get_if<CallEnd>(&event)) EXPECT_TRUE(end->complete);
  }
  return out;
}

std::shared_ptr<const grammar::Grammar> compiled(const protocol::GrammarSpec& spec,
                                                 const Model& model) {
  auto made = grammar::compile(spec, model.vocabulary);
  EXPECT_TRUE(made) << made.error().message << " at " << made.error().pointer.value_or("") << "\n"
                    << spec.text;
  return made ? *made : nullptr;
}

bool valid(const Model& model, protocol::GrammarKind kind, const std::string& schema,
           const std::string& text) {
  const auto made = compiled(
      {.kind = kind, .text = schema, .strict = true, .spelling = protocol::JsonSpelling::kCompact},
      model);
  if (made == nullptr) return false;
  grammar::Matcher matcher(made);
  for (const char c : text) {
    if (!matcher.accept(static_cast<unsigned char>(c))) return false;
  }
  return matcher.accepting();
}

std::string body_of(const char* schema, const std::string& more) {
  return R"(,"tools":[{"type":"function","function":{"name":"do.it-2","strict":true,"parameters":)" +
         std::string(schema) +
         R"(}},{"type":"function","function":{"name":"other","parameters":{"type":"object","properties":{"q":{"type":"string","maxLength":4}},"additionalProperties":false}}}])" +
         more;
}

Opening opening_of(const Model& model) { return model.format->opening(model.prompt_end); }

class Layouts : public testing::TestWithParam<Variant> {};

TEST_P(Layouts, DemandedCallsAreReadBackAndValid) {
  const Model model = model_of(GetParam());
  for (size_t i = 0; i < std::size(kSchemas); ++i) {
    const bool one = i % 2 == 1;
    const auto request =
        chat(body_of(kSchemas[i], std::string(R"(,"tool_choice":"required")") +
                                      (one ? R"(,"parallel_tool_calls":false)" : "")));
    ASSERT_TRUE(request) << request.error().message;
    const auto spec = reply_grammar(*request, *model.format, opening_of(model));
    ASSERT_TRUE(spec) << spec.error().message;
    const auto grammar = compiled(**spec, model);
    ASSERT_NE(grammar, nullptr);
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      Writer writer(model, grammar, seed);
      ASSERT_TRUE(writer.finish()) << writer.text;
      const Said said = read(model, request->tools, writer);
      ASSERT_FALSE(said.calls.empty()) << writer.text;
      EXPECT_EQ(said.text, "") << writer.text;
      if (one) EXPECT_EQ(said.calls.size(), 1U) << writer.text;
      for (const auto& [name, arguments] : said.calls) {
        ASSERT_TRUE(name == "do.it-2" || name == "other") << writer.text;
        if (name == "do.it-2")
          EXPECT_TRUE(valid(model, protocol::GrammarKind::kJsonSchema, kSchemas[i], arguments))
              << writer.text << "\nread as " << arguments;
      }
    }
  }
}

std::string demanded(const char* parameters, bool strict) {
  return R"(,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","strict":)" +
         std::string(strict ? "true" : "false") + R"(,"parameters":)" + parameters + "}}]";
}

// What calls of the only tool are read as; random texts that do not end are left out.
std::vector<JsonValue> arguments_read(const Model& model, const std::string& body) {
  std::vector<JsonValue> out;
  const auto request = chat(body);
  const auto spec = request ? reply_grammar(*request, *model.format, opening_of(model))
                            : tl::unexpected(request.error());
  EXPECT_TRUE(spec) << spec.error().message;
  const auto grammar = spec ? compiled(**spec, model) : nullptr;
  for (uint32_t seed = 1; grammar != nullptr && seed <= 4; ++seed) {
    Writer writer(model, grammar, seed);
    writer.ends_texts = true;
    if (!writer.finish()) continue;
    const Said said = read(model, request->tools, writer);
    EXPECT_FALSE(said.calls.empty()) << writer.text;
    for (const auto& [name, arguments] : said.calls) {
      const auto value = parse_json(arguments);
      EXPECT_TRUE(value && value->is_object()) << writer.text << "\nread as " << arguments;
      if (value) out.push_back(*value);
    }
  }
  return out;
}

TEST_P(Layouts, CallsHoldObjectsWhateverTheirSchemasAllow) {
  const Model model = model_of(GetParam());
  for (const char* schema :
       {"{}", R"({"properties":{"a":{"type":"integer"}},"required":["a"]})",
        R"({"type":["object","null"],"properties":{},"additionalProperties":false})"})
    EXPECT_FALSE(arguments_read(model, demanded(schema, true)).empty()) << schema;
}

TEST_P(Layouts, TextsAreTextsWhereSchemasCannotBeEnforced) {
  const auto read = arguments_read(
      model_of(GetParam()),
      demanded(
          R"({"type":"object","properties":{"city":{"type":"string"},"tags":{"type":"array","items":{"type":"string"},"uniqueItems":true}},"required":["city"]})",
          false));
  ASSERT_FALSE(read.empty());
  bool plain = false;
  for (const JsonValue& one : read) {
    ASSERT_TRUE(one.find("city") != nullptr && one.find("city")->is_string()) << one.dump();
    plain = plain || !one.find("city")->as_string().starts_with('"');
  }
  EXPECT_TRUE(plain) << "quotes belong to the notation, not to the text";
}

// Free text where the family has any, then what opens calls.
bool open_calls(const Variant& of, const Model& model, const CallLayout& layout, Writer& writer) {
  const Family& family = *find_family(of.parser);
  if (family.reply != nullptr) return true;
  if (opening_of(model) == Opening::kReasoning &&
      !(writer.say("hm") && writer.take(model.format->style().close.front().token)))
    return false;
  if (layout.bare != 0) return writer.say(std::string(1, layout.bare));
  if (!writer.say("Hi ")) return false;
  const std::string first(family.markers[0]);
  const auto token =
      std::ranges::find(model.tokens, first, &std::pair<std::string, int32_t>::first);
  if (token != model.tokens.end()) return writer.take(token->second);
  if (family.kept.empty() || model.tokens.empty()) return writer.say(first);
  return writer.say("<") && writer.take(model.tokens[0].second);
}

// tool_choice auto: text as the model likes, then calls that are as strict tools say.
TEST_P(Layouts, CallsOfStrictToolsAreKeptToTheirSchemas) {
  const Model model = model_of(GetParam());
  const bool tagged = find_family(GetParam().parser)->reply == nullptr;
  int calls = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const bool one = seed % 2 == 0;
    const auto request = chat(body_of(kSchemas[0], one ? R"(,"parallel_tool_calls":false)" : ""));
    ASSERT_TRUE(request);
    const auto spec = reply_grammar(*request, *model.format, opening_of(model));
    ASSERT_TRUE(spec) << spec.error().message;
    ASSERT_TRUE(spec->has_value());
    const auto grammar = compiled(**spec, model);
    ASSERT_NE(grammar, nullptr);
    Writer writer(model, grammar, seed);
    ASSERT_TRUE(open_calls(GetParam(), model, **model.format->layout(opening_of(model)), writer))
        << writer.text;
    if (!writer.finish()) continue;  // free text may go on for ever
    const Said said = read(model, request->tools, writer);
    if (tagged) EXPECT_FALSE(said.calls.empty()) << writer.text;
    if (one) EXPECT_LE(said.calls.size(), 1U) << writer.text;
    for (const auto& [name, arguments] : said.calls) {
      ++calls;
      ASSERT_TRUE(name == "do.it-2" || name == "other") << writer.text;
      if (name == "do.it-2")
        EXPECT_TRUE(valid(model, protocol::GrammarKind::kJsonSchema, kSchemas[0], arguments))
            << writer.text << "\nread as " << arguments;
    }
  }
  if (tagged) EXPECT_GT(calls, 0);
}

// tool_choice auto with a list: no strict tool is needed for others not to be called.
TEST_P(Layouts, ToolsThatAreNotAllowedAreNotCalled) {
  const Model model = model_of(GetParam());
  const auto request = chat(
      R"(,"tools":[{"type":"function","function":{"name":"other"}},{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{},"additionalProperties":false}}}])"
      R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}})");
  ASSERT_TRUE(request) << request.error().message;
  const auto spec = reply_grammar(*request, *model.format, opening_of(model));
  ASSERT_TRUE(spec) << spec.error().message;
  ASSERT_TRUE(spec->has_value());
  const auto grammar = compiled(**spec, model);
  ASSERT_NE(grammar, nullptr);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Writer writer(model, grammar, seed);
    ASSERT_TRUE(open_calls(GetParam(), model, **model.format->layout(opening_of(model)), writer))
        << writer.text;
    if (!writer.finish()) continue;
    const Said said = read(model, request->tools, writer);
    if (find_family(GetParam().parser)->reply == nullptr)
      EXPECT_FALSE(said.calls.empty()) << writer.text;
    for (const auto& [name, arguments] : said.calls) EXPECT_EQ(name, "f") << writer.text;
  }
}

// Either the parser reads a name back as it is, or it is refused where it stands.
TEST_P(Layouts, NamesAreReadBackOrRefused) {
  const Model model = model_of(GetParam());
  for (const char* name : {"mcp:search/web", "get weather", "a\"b", "a{b", "a>b", "a<b", "a(b",
                           "[a", "a&quot;b", "a\nb", "\ta", "caf\xC3\xA9", "a-b.c_D9", ""}) {
    const auto request = chat(
        R"(,"tools":[{"type":"function","function":{"name":)" + JsonValue::string(name).dump() +
        R"(,"parameters":{"type":"object","properties":{},"additionalProperties":false}}}],"tool_choice":"required","parallel_tool_calls":false)");
    ASSERT_TRUE(request) << request.error().message;
    const auto spec = reply_grammar(*request, *model.format, opening_of(model));
    if (!spec) {
      EXPECT_EQ(spec.error().pointer, "/tools/0/function/name") << name;
      EXPECT_NE(std::string_view(name), "a-b.c_D9");
      continue;
    }
    const auto grammar = compiled(**spec, model);
    ASSERT_NE(grammar, nullptr);
    Writer writer(model, grammar, 1);
    ASSERT_TRUE(writer.finish()) << writer.text;
    const Said said = read(model, request->tools, writer);
    ASSERT_EQ(said.calls.size(), 1U) << writer.text;
    EXPECT_EQ(said.calls[0].first, name) << writer.text;
  }
}

constexpr const char* kLark =
    "start: line+\nline: VERB \" \\\"\" /[a-z<>]{1,4}/ \"\\\"\" LF\nVERB: \"add\" | "
    "\"del\"\n%import common.LF";

TEST_P(Layouts, CustomToolsTextsFollowTheirGrammars) {
  const Model model = model_of(GetParam());
  for (const auto& [syntax, definition] :
       {std::pair{"lark", kLark}, std::pair{"regex", "[A-F\"\\\\]{1,5}é?\n"}}) {
    JsonValue grammar = JsonValue::object(
        {{"syntax", JsonValue::string(syntax)}, {"definition", JsonValue::string(definition)}});
    const auto request = chat(
        R"(,"tools":[{"type":"custom","custom":{"name":"exec","format":{"type":"grammar","grammar":)" +
        grammar.dump() + R"(}}}],"tool_choice":"required")");
    ASSERT_TRUE(request) << request.error().message;
    const auto spec = reply_grammar(*request, *model.format, opening_of(model));
    ASSERT_TRUE(spec) << spec.error().message;
    const auto made = compiled(**spec, model);
    ASSERT_NE(made, nullptr);
    for (uint32_t seed = 1; seed <= 2; ++seed) {
      Writer writer(model, made, seed);
      ASSERT_TRUE(writer.finish()) << writer.text;
      const Said said = read(model, request->tools, writer);
      ASSERT_FALSE(said.calls.empty()) << writer.text;
      for (const auto& [name, arguments] : said.calls) {
        const std::string input = custom_input(arguments);
        const auto kind = std::string_view(syntax) == "lark" ? protocol::GrammarKind::kLark
                                                             : protocol::GrammarKind::kRegex;
        EXPECT_TRUE(valid(model, kind, definition, input)) << writer.text << "\nread as " << input;
      }
    }
  }
}

// Texts that look like what ends them: either written so that they are read back, or not at all.
TEST_P(Layouts, CustomToolsTextsDoNotEndTheirCalls) {
  const Model model = model_of(GetParam());
  const char* const definition =
      "[a-z\\n</\xEF\xBD\x9C"
      "DSML_>]{4,60}";
  JsonValue grammar = JsonValue::object(
      {{"syntax", JsonValue::string("regex")}, {"definition", JsonValue::string(definition)}});
  const auto request = chat(
      R"(,"tools":[{"type":"custom","custom":{"name":"exec","format":{"type":"grammar","grammar":)" +
      grammar.dump() + R"(}}}],"tool_choice":"required","parallel_tool_calls":false)");
  ASSERT_TRUE(request) << request.error().message;
  const auto spec = reply_grammar(*request, *model.format, opening_of(model));
  ASSERT_TRUE(spec) << spec.error().message;
  const auto made = compiled(**spec, model);
  ASSERT_NE(made, nullptr);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Writer writer(model, made, seed);
    writer.ends_texts = true;
    ASSERT_TRUE(writer.finish()) << writer.text;
    const Said said = read(model, request->tools, writer);
    ASSERT_EQ(said.calls.size(), 1U) << writer.text;
    EXPECT_EQ(said.text, "") << writer.text;
    const std::string input = custom_input(said.calls[0].second);
    EXPECT_TRUE(valid(model, protocol::GrammarKind::kRegex, definition, input))
        << writer.text << "\nread as " << input;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(kVariants));

TEST(CallLayout, SaysWhichTokenIsMissing) {
  for (const char* parser : {"kimi_k2", "kimi_k3", "deepseek_v3", "gemma4", "harmony", "mistral"}) {
    const Model model = model_of({parser, "", "", false});
    const auto forced = reply_grammar(*chat(body_of(kSchemas[0], R"(,"tool_choice":"required")")),
                                      *model.format, Opening::kFree);
    ASSERT_FALSE(forced) << parser;
    EXPECT_EQ(forced.error().status, 400);
    EXPECT_EQ(forced.error().pointer, "/tool_choice");
    EXPECT_NE(forced.error().message.find(find_family(parser)->markers[0]), std::string::npos);
    const auto strict =
        reply_grammar(*chat(body_of(kSchemas[0], "")), *model.format, Opening::kFree);
    ASSERT_FALSE(strict) << parser;
    EXPECT_EQ(strict.error().pointer, "/tools/0/function/parameters");
  }
}

TEST(CallLayout, ANameThatIsNotReadBackIsRefusedInEveryDialect) {
  const Model model = model_of({"llama4_pythonic", "", "", true});
  const auto pointer = [&](Endpoint endpoint, const std::string& body) {
    const auto request = parse_request(endpoint, parse(body));
    EXPECT_TRUE(request) << request.error().message;
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    return spec ? std::string("none") : spec.error().pointer.value_or("");
  };
  EXPECT_EQ(
      pointer(
          Endpoint::kResponses,
          R"({"input":"x","tools":[{"type":"function","name":"a b"}],"tool_choice":"required"})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(Endpoint::kResponses,
              R"({"input":"x","tools":[{"type":"custom","name":"a b"}],"tool_choice":"required"})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(
          Endpoint::kMessages,
          R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"a b","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(Endpoint::kResponses, R"({"input":"x","tools":[{"type":"function","name":"a b"}]})"),
      "none");
}

TEST(CallLayout, IsThereForEveryFamily) {
  for (const Family& family : families()) EXPECT_NE(family.layout, nullptr) << family.name;
}

TEST(CallLayout, FormatsAreInsideWhatFamiliesWriteAroundAnswers) {
  const Model model = model_of({"harmony", "", "", true});
  const auto request = chat(
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}}})");
  const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
  ASSERT_TRUE(spec && *spec);
  const auto grammar = compiled(**spec, model);
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Writer writer(model, grammar, seed);
    if (writer.finish())
      EXPECT_EQ(read(model, JsonValue::array(), writer).text, "{\"a\": 1}") << writer.text;
  }
}

TEST(CallLayout, AStrictToolMakesNoFormatStrict) {
  const Model model = model_of({"hermes", "", "", false});
  const auto notes = [&](const char* strict) {
    const auto request = chat(body_of(
        kSchemas[3],
        R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":)" +
            std::string(strict) +
            R"(,"schema":{"oneOf":[{"type":"integer"},{"type":"integer","minimum":2}]}}})"));
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    EXPECT_TRUE(spec) << spec.error().message;
    const auto made = grammar::compile(**spec, model.vocabulary);
    return made ? (*made)->notes().size() : 1000;
  };
  EXPECT_EQ(notes("false"), 1U);
  EXPECT_EQ(notes("true"), 1000U) << "refused";
}

TEST(CallLayout, GrammarsOfRequestsMeanTheSameWhereverTheyStand) {
  const Model model = model_of({"glm", "", "", true});
  const auto code = [&](const char* definition, Opening opening) {
    const auto request = chat(R"(,"guided_grammar":)" + JsonValue::string(definition).dump());
    if (!request) return request.error().code;
    const auto spec = reply_grammar(*request, *model.format, opening);
    if (!spec) return spec.error().code;
    const auto made = grammar::compile(**spec, model.vocabulary);
    if (!made) EXPECT_EQ(made.error().pointer, "/guided_grammar");
    return made ? std::string("none") : made.error().code;
  };
  for (const Opening opening : {Opening::kAnswer, Opening::kReasoning, Opening::kFree}) {
    for (const char* refused : {"start: <|end|>", "start: %json {}", "root ::= <[1]>"})
      EXPECT_EQ(code(refused, opening), "unsupported_grammar") << refused;
    for (const char* taken : {"start: \"a\" b?\nb: /[^x]/", "root ::= \"a\" [b-d]*"})
      EXPECT_EQ(code(taken, opening), "none") << taken;
  }
}

TEST(CallLayout, ErrorsOfSchemasAndGrammarsSayWhere) {
  const Model model = model_of({"glm", "", "", true});
  const auto error = [&](const std::string& fields) {
    const auto request = chat(fields);
    if (!request) return request.error().pointer.value_or("");
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    if (!spec) return spec.error().pointer.value_or("");
    const auto made = grammar::compile(**spec, model.vocabulary);
    return made ? std::string("none") : made.error().pointer.value_or("");
  };
  EXPECT_EQ(error(body_of(R"({"type":"object","properties":{"a":{"not":{}}}})",
                          R"(,"tool_choice":"required")")),
            "/tools/0/function/parameters/properties/a/not");
  const auto custom = [](const char* definition) {
    return R"(,"tools":[{"type":"custom","custom":{"name":"x","format":{"type":"grammar","grammar":{"syntax":"lark","definition":)" +
           JsonValue::string(definition).dump() + "}}}}]";
  };
  EXPECT_EQ(error(custom("start: nothing")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: <|end|>")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: %json {}")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: \"a\"")), "none");
  EXPECT_EQ(error(body_of(kSchemas[3],
                          R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":)"
                          R"("required","tools":[{"type":"function","function":{"name":"x"}}]}})")),
            "/tool_choice");
  EXPECT_EQ(
      error(body_of(kSchemas[3],
                    R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":)"
                    R"("required","tools":[{"type":"function","function":{"name":"other"}}]}})")),
      "none");
}

}  // namespace
}  // namespace tandem::api
