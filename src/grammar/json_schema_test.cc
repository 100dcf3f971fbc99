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

}  // namespace
}  // namespace tandem::grammar
