// Every family: what a model with random weights writes under the grammar of its calls is read back
// by the family's parser as calls whose arguments satisfy their schemas.
#include "api/tools/call_layout_test_support.h"

namespace tandem::api {
namespace {

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

}  // namespace
}  // namespace tandem::api
