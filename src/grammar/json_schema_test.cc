#include "grammar/argument_types.h"
#include "grammar/grammar_test_support.h"

namespace tandem::grammar {
namespace {

using protocol::GrammarKind;

struct Case {
  const char* schema;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

void run(const std::vector<Case>& cases) {
  for (const Case& one : cases)
    expect_language(GrammarKind::kJsonSchema, one.schema, one.good, one.bad);
}

TEST(JsonSchema, TypesAreWhatTheyAre) {
  run({{R"({"type":"null"})", {"null"}, {"nul", "nulls", "0", ""}},
       {R"({"type":"boolean"})", {"true", "false"}, {"truefalse", "1", "\"true\""}},
       {R"({"type":["string","null"]})",
        {"null", R"("")", R"("a\n\"\\é")"},
        {"1", R"("a)", "\"\n\"", R"("\x")"}},
       {R"({"type":"integer"})", {"0", "-1", "120"}, {"-0", "01", "1.0", "1e3", "+1", "--1"}},
       {R"({"type":"number"})", {"0", "-0.5", "1e9", "2.5E-3"}, {".5", "1.", "1e", "1e999"}},
       {R"(true)", {"[1, {\"a\": null}]", "{}"}, {"", "[1,2]", "[1 , 2]"}},
       {R"({})", {"[[[]]]", "\"x\""}, {"[", "[]]"}}});
}

TEST(JsonSchema, ObjectsFollowTheSchemasOrder) {
  run({{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],
           "additionalProperties":false})",
        {R"({"a": 1})", R"({"a": 1, "b": "x"})"},
        {R"({})", R"({"b": "x"})", R"({"b": "x", "a": 1})", R"({"a": 1, "c": 2})", R"({"a": 1,})",
         R"({"a":1})"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},
           "additionalProperties":false})",
        {"{}", R"({"a": 1})", R"({"c": 1})", R"({"a": 1, "c": 2})"},
        {R"({, "a": 1})", R"({"c": 1, "a": 2})"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
        {R"({"a": 1, "b": true})", R"({"ab": true})", R"({"": true, "x": false})"},
        {R"({"a": true})", R"({"b": 1})"}}});
}

TEST(JsonSchema, NumbersAreExactlyWithinTheirBounds) {
  run({{R"({"type":"integer","minimum":-12,"exclusiveMaximum":105})",
        {"-12", "-1", "0", "9", "99", "104"},
        {"-13", "105", "-20", "1000", "-0"}},
       {R"({"type":"number","exclusiveMinimum":0.5,"maximum":2})",
        {"0.51", "0.500001", "1", "1.999", "2", "2.0"},
        {"0.5", "0.50", "0", "2.01", "-1", "3"}},
       {R"({"type":"number","minimum":-2.25,"exclusiveMaximum":-0.5})",
        {"-2.25", "-0.51", "-1"},
        {"-2.26", "-0.5", "0", "1"}},
       {R"({"type":"integer","multipleOf":7,"minimum":1,"maximum":40})",
        {"7", "35"},
        {"0", "1", "42"}},
       {R"({"type":"number","multipleOf":0.25})", {"0.25", "-1.5", "3"}, {"0.3", "0.125"}},
       {R"({"type":"integer","minimum":1e20})",
        {"100000000000000000000"},
        {"99999999999999999999"}}});
  expect_refused(GrammarKind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":4})",
                 "invalid_grammar");
}

TEST(JsonSchema, LengthPatternAndFormatHoldTogether) {
  run({{R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":3})",
        {R"("ab")", R"("abc")"},
        {R"("a")", R"("abcd")", R"("A1")"}},
       {R"({"type":"string","pattern":"b","maxLength":2})",
        {R"("b")", R"("xb")"},
        {R"("xx")", R"("xxb")"}},
       {R"({"type":"string","minLength":1,"maxLength":2})",
        {"\"\xC3\xA9\xC3\xA9\"", R"("\n\u0001")"},
        {R"("")", "\"\xC3\xA9\xC3\xA9\xC3\xA9\""}},
       {R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")"}},
       {R"({"type":"string","pattern":"(^x|y)z"})", {R"("xz")", R"("ayz")"}, {R"("axz")"}},
       {R"({"format":"date","type":"string"})",
        {R"("2024-02-29")"},
        {R"("2023-02-29")", R"("2024-1-1")"}},
       {R"({"format":"ipv4","type":"string"})", {R"("10.0.0.255")"}, {R"("10.0.0.256")"}}});
}

TEST(JsonSchema, ArraysCount) {
  run({{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
        {"[1]", "[1, 2]"},
        {"[]", "[1, 2, 3]", "[1,2]"}},
       {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false})",
        {"[]", "[null]", "[null, true]"},
        {"[true]", "[null, true, 1]"}},
       {R"({"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"integer"},{"type":"string"}],"type":"array"})",
        {"[1, \"a\"]", "[1, \"a\", null]"},
        {"[\"a\"]"}}});
}

TEST(JsonSchema, SchemasOfOnePlaceAreMerged) {
  run({{R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":3}}}],
           "type":"object","additionalProperties":true,"maxProperties":1})",
        {R"({"a": 3})"},
        {R"({"a": 2})", "{}"}},
       {R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string"}}})",
        {R"("ab")"},
        {R"("abc")", "1"}},
       {R"({"type":"object","properties":{"b":{"type":"null"}},"patternProperties":{"^x":{"type":"integer"}},
           "additionalProperties":false})",
        {R"({"b": null, "x1": 2})", R"({"x": 1})"},
        {R"({"x1": null})", R"({"y": 1})"}},
       {R"({"type":"object","propertyNames":{"pattern":"^[ab]$"},"additionalProperties":{"type":"null"},"minProperties":1})",
        {R"({"a": null})"},
        {"{}", R"({"c": null})"}},
       {R"({"allOf":[{"properties":{"a":{"type":"null"}}}],"unevaluatedProperties":false,"type":"object"})",
        {R"({"a": null})", "{}"},
        {R"({"b": null})"}},
       {R"({"enum":[1,"a",{"k":[null]}],"type":["integer","object"]})",
        {"1", R"({"k": [null]})"},
        {R"("a")"}}});
}

TEST(JsonSchema, OneOfIsExactOrSaysSo) {
  run({{R"({"oneOf":[{"type":"integer","minimum":5},{"type":"integer","maximum":4},{"type":"null"}]})",
        {"4", "5", "null"},
        {"true"}}});
  const char* overlapping = R"({"oneOf":[{"type":"integer"},{"type":"integer","minimum":2}]})";
  expect_refused(GrammarKind::kJsonSchema, overlapping, "unsupported_grammar", "/oneOf");
  const auto loose = compile_text(GrammarKind::kJsonSchema, overlapping, false);
  ASSERT_TRUE(loose);
  EXPECT_EQ((*loose)->notes().size(), 1U);
  EXPECT_TRUE(accepts(*loose, "3"));
}

TEST(JsonSchema, RecursionEndsOrIsRefused) {
  run({{R"({"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},
           "required":["next"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
        {R"({"next": null})", R"({"next": {"next": {"next": null}}})"},
        {R"({"next": 1})", R"({"next": {}})"}}});
  expect_refused(GrammarKind::kJsonSchema,
                 R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
                 "invalid_grammar");
  expect_refused(GrammarKind::kJsonSchema, R"({"$ref":"#"})", "unsupported_grammar", "/$ref");
}

TEST(JsonSchema, TextsAndValuesThatLeadToThemselvesAreTooLarge) {
  const std::string self =
      R"("$defs":{"n":{"type":"string","anyOf":[{"$ref":"#/$defs/n"},{"minLength":1}]}})";
  expect_refused(GrammarKind::kJsonSchema,
                 R"({"type":"object","propertyNames":{"$ref":"#/$defs/n"},)" + self + "}",
                 "grammar_too_large", "/$defs/n/anyOf/0");
  expect_refused(GrammarKind::kLark,
                 "start: %arguments@/p (raw, open = \"<\", value = \"=\", close = \">\", between = "
                 R"("") {"type":"object","properties":{"x":{"$ref":"#/$defs/n"}},)" +
                     self + "}",
                 "grammar_too_large", "/p/$defs/n/anyOf/0");
  expect_refused(GrammarKind::kJsonSchema,
                 R"({"enum":[["a"]],"items":{"$ref":"#/$defs/n"},)" + self + "}",
                 "grammar_too_large", "/$defs/n/anyOf/0");
}

TEST(ArgumentTypes, EndsWhereSchemasReferToOneAnother) {
  std::string branches;
  for (int i = 0; i < 40; ++i)
    branches += std::string(i == 0 ? "" : ",") + R"({"$ref":"#/$defs/n"})";
  const auto parameters = parse_json(R"({"properties":{"x":{"$ref":"#/$defs/n"}},"$defs":{"n":)"
                                     R"({"type":"string","anyOf":[)" +
                                     branches + "]}}}");
  ASSERT_TRUE(parameters);
  EXPECT_EQ(argument_types(&*parameters, "x").bits, ArgumentTypes::kAny);
}

TEST(JsonSchema, EveryRefusalNamesItsPlace) {
  struct Refused {
    const char* schema;
    const char* code;
    const char* pointer;
  };
  static constexpr Refused kCases[] = {
      {R"({"properties":{"a/b":{"not":{}}}})", "unsupported_grammar", "/properties/a~1b/not"},
      {R"({"if":{},"then":{}})", "unsupported_grammar", "/if"},
      {R"({"items":{"contains":{}}})", "unsupported_grammar", "/items/contains"},
      {R"({"uniqueItems":true})", "unsupported_grammar", "/uniqueItems"},
      {R"({"dependentRequired":{}})", "unsupported_grammar", "/dependentRequired"},
      {R"({"$dynamicRef":"#a"})", "unsupported_grammar", "/$dynamicRef"},
      {R"({"anyOf":[{"$ref":"http://example.com/x"}]})", "unsupported_grammar", "/anyOf/0/$ref"},
      {R"x({"pattern":"(?=a)","type":"string"})x", "unsupported_grammar", "/pattern"},
      {R"({"pattern":"foo**","type":"string"})", "invalid_grammar", "/pattern"},
      {R"({"type":"hiccup"})", "invalid_grammar", "/type"},
      {R"({"type":123})", "invalid_grammar", "/type"},
      {R"({"minLength":-1,"type":"string"})", "invalid_grammar", "/minLength"},
      {R"({"properties":[]})", "invalid_grammar", "/properties"},
  };
  for (const Refused& one : kCases)
    expect_refused(GrammarKind::kJsonSchema, one.schema, one.code, one.pointer);
  const std::string deep = R"({"type":"string","pattern":")" + std::string(5000, '(') + "\"}";
  expect_refused(GrammarKind::kJsonSchema, deep, "invalid_grammar", "/pattern");
}

TEST(JsonSchema, HugeBoundsCostNothingUntilTheyAreUsed) {
  run({{R"({"type":"string","minLength":2,"maxLength":1000000})", {R"("abc")"}, {R"("a")"}},
       {R"({"type":"array","items":{"type":"string","maxLength":99999},"maxItems":1000000})",
        {R"(["a"])"},
        {}}});
}

TEST(Matcher, GoesBackAndSeesDraftsAndForcedBytes) {
  const auto grammar = compile_text(
      GrammarKind::kJsonSchema,
      R"({"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false})");
  ASSERT_TRUE(grammar);
  Matcher matcher(*grammar);
  EXPECT_EQ(matcher.forced(100), R"({"name": ")");
  const std::vector<int32_t> draft = {'{', '"', 'n', 'a', 'x'};
  const auto masks = matcher.draft_masks(draft);
  ASSERT_TRUE(masks);
  EXPECT_EQ(masks->size(), 5U);
  EXPECT_FALSE(masks->back().has('x'));
  EXPECT_EQ(matcher.accept(draft), 4U);
  const auto before = matcher.point().config;
  EXPECT_TRUE(matcher.accept('m'));
  matcher.rollback(1);
  EXPECT_EQ(matcher.point().config, before);
  matcher.rollback(99);
  EXPECT_EQ(matcher.size(), 0U);
}

TEST(Matcher, EndTokensComeOnlyWhereTheTextIsComplete) {
  const auto grammar = compile_text(GrammarKind::kRegex, "a{1,2}");
  ASSERT_TRUE(grammar);
  Matcher matcher(*grammar);
  EXPECT_FALSE(matcher.accept(TestVocabulary::kEos));
  EXPECT_TRUE(matcher.accept('a'));
  EXPECT_FALSE(matcher.finished());
  Matcher other = matcher;
  EXPECT_TRUE(other.accept(TestVocabulary::kEos));
  EXPECT_TRUE(other.finished());
  EXPECT_FALSE(other.accept('a'));
  EXPECT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.finished());
}

TEST(GrammarCacheTest, TheSameSpecIsCompiledOnce) {
  GrammarCache cache(test_vocabulary(), {}, 1);
  const auto first = cache.get({.kind = GrammarKind::kRegex, .text = "a"});
  const auto again = cache.get({.kind = GrammarKind::kRegex, .text = "a"});
  ASSERT_TRUE(first && again);
  EXPECT_EQ(*first, *again);
  ASSERT_TRUE(cache.get({.kind = GrammarKind::kRegex, .text = "b"}));
  EXPECT_EQ(*cache.get({.kind = GrammarKind::kRegex, .text = "a"}), *first)
      << "in use: not forgotten";
}

TEST(GrammarCacheTest, NotesNameTheFieldOfTheirOwnRequest) {
  GrammarCache cache(test_vocabulary());
  const std::string overlapping =
      R"({"oneOf":[{"type":"integer"},{"type":"integer","minimum":2}]})";
  for (const char* pointer : {"/a", "/b"}) {
    const auto grammar =
        cache.get({.kind = GrammarKind::kJsonSchema, .text = overlapping, .pointer = pointer});
    ASSERT_TRUE(grammar);
    EXPECT_TRUE((*grammar)->notes().at(0).starts_with(std::string(pointer) + "/oneOf "));
  }
}

TEST(JsonSchema, LongEnumsTakeLinearTime) {
  std::string values;
  for (int i = 0; i < 20'000; ++i)
    values += (i == 0 ? "\"value " : ", \"value ") + std::to_string(i * 7919) + "\"";
  // Comparing each with each would take minutes of the two seconds that compiling may take.
  const auto grammar = compile_text(
      GrammarKind::kJsonSchema, "{\"allOf\":[{\"enum\":[" + values + "]},{\"enum\":[1.0," + values +
                                    "]},{\"type\":[\"string\",\"integer\"]}]}");
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(accepts(*grammar, "\"value 158372081\""));
  EXPECT_FALSE(accepts(*grammar, "\"value 158372082\""));
  EXPECT_FALSE(accepts(*grammar, "1"));
}

TEST(JsonSchema, EnumsKnowEqualValuesBySense) {
  run({{R"({"allOf":[{"enum":[1.0,{"a":1,"b":[2]},"x",[1,2],null]},{"enum":[{"b":[2.0],"a":1e0},1,[2,1],"X"]}]})",
        {"1", R"({"a": 1, "b": [2]})"},
        {"\"x\"", "null", "[1, 2]"}}});
}

}  // namespace
}  // namespace tandem::grammar
