#include "grammar/grammar_test_support.h"

namespace tandem::grammar {
namespace {

using protocol::GrammarKind;

TEST(Regex, MatchesTheWholeText) {
  expect_language(GrammarKind::kRegex, "a(b|c)*d{2,3}", {"add", "abcbcddd"},
                  {"ad", "adddd", "xadd"});
  expect_language(GrammarKind::kRegex, "[^a-z]\\d\\w?",
                  {"A1",
                   "\xC3\xA9"
                   "2_"},
                  {"a1",
                   "\xC3"
                   "2"});
  expect_language(GrammarKind::kRegex, "^(yes|no)$", {"yes", "no"}, {"yesno"});
}

TEST(Regex, WhatIsNotRegularIsRefused) {
  for (const char* text : {"foo**", "(a", "a)", "[a", "a{3,2}", "*"})
    expect_refused(GrammarKind::kRegex, text, "invalid_grammar");
  for (const char* text : {"(?=a)b", "(a)\\1", "a\\b"})
    expect_refused(GrammarKind::kRegex, text, "unsupported_grammar");
  expect_refused(GrammarKind::kRegex, std::string(5000, '('), "invalid_grammar");
}

TEST(Choice, IsOneOfTheTexts) {
  expect_language(GrammarKind::kChoice, R"(["red", "green", "re"])", {"red", "green", "re"},
                  {"r", "greenred"});
  expect_refused(GrammarKind::kChoice, "[]", "invalid_grammar");
}

TEST(Gbnf, RecursionAndRepetition) {
  expect_language(GrammarKind::kGbnf, R"g(
root ::= expr # the root
expr ::= term ("+" term)*
term ::= [0-9]{1,3} | "(" expr ")"
)g",
                  {"1", "12+(3+4)", "((999))"}, {"1234", "(1", "1+"});
  expect_refused(GrammarKind::kGbnf, "root ::= " + std::string(60000, '('), "invalid_grammar");
}

TEST(TextGrammars, WhatIsDeeplyNestedIsRefused) {
  for (const char* marks : {"*", "?", "+"}) {
    std::string many;
    for (int i = 0; i < 200'000; ++i) many += marks;
    expect_refused(GrammarKind::kLark, "start: \"a\"" + many, "invalid_grammar");
    expect_refused(GrammarKind::kGbnf, "root ::= \"a\"" + many, "invalid_grammar");
  }
  expect_language(GrammarKind::kLark, "start: \"a\"+?\n?b: \"b\"", {"", "aa"}, {"b"});
  std::string rules;
  std::string terminals;
  std::string gbnf = "root ::= r0\n";
  const int size = 20'000 - 2;
  for (int i = 0; i < size; ++i) {
    const std::string next = std::to_string(i + 1);
    rules += "r" + std::to_string(i) + ": r" + next + "\n";
    terminals += "T" + std::to_string(i) + ": T" + next + "\n";
    gbnf += "r" + std::to_string(i) + " ::= r" + next + "\n";
  }
  const std::string last = std::to_string(size);
  expect_refused(GrammarKind::kLark, "start: r0\n" + rules + "r" + last + ": \"a\"",
                 "grammar_too_large");
  expect_refused(GrammarKind::kLark, "start: T0\n" + terminals + "T" + last + ": \"a\"",
                 "grammar_too_large");
  expect_refused(GrammarKind::kGbnf, gbnf + "r" + last + " ::= \"a\"\n", "grammar_too_large");
}

TEST(Lark, FreeTextUntilAMarkerThenSyntax) {
  const char* text = R"(
start: (PRE call)* TAIL
PRE: %until("<tool_call>")
TAIL: %without("<tool_call>")
call: %json {"type":"object","properties":{"name":{"const":"f"}},"required":["name"],"additionalProperties":false} "</tool_call>"
)";
  expect_language(
      GrammarKind::kLark, text,
      {"", "hello <tool", "hi <tool_call>{\"name\": \"f\"}</tool_call>",
       "<tool_call>{\"name\": \"f\"}</tool_call> and <<tool_call>{\"name\": \"f\"}</tool_call>"},
      {"<tool_call>", "<tool_call>x", "<tool_call>{\"name\": \"g\"}</tool_call>"});
}

TEST(Lark, SpecialTokensByNameAndId) {
  const auto grammar =
      compile_text(GrammarKind::kLark, "start: TEXT? <|tool|> \"x\" <[257]>\nTEXT: /[a-z]+/");
  ASSERT_TRUE(grammar) << grammar.error().message;
  Matcher matcher(*grammar);
  EXPECT_FALSE(matcher.accept(TestVocabulary::kEnd));
  EXPECT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.accept(TestVocabulary::kTool));
  EXPECT_FALSE(matcher.accept('y'));
  EXPECT_TRUE(matcher.accept('x'));
  EXPECT_FALSE(matcher.accepting());
  EXPECT_TRUE(matcher.accept(TestVocabulary::kEnd));
  EXPECT_TRUE(matcher.finished());
  expect_refused(GrammarKind::kLark, "start: <|nothing|>", "invalid_grammar");
}

TEST(Lark, LeftRecursionIsRewritten) {
  expect_language(
      GrammarKind::kLark,
      "start: sum\nsum: sum \"+\" product | product\nproduct: product \"*\" N | N\nN: /[0-9]+/",
      {"1", "1+2*3+4"}, {"+1", "1+", "1**2"});
}

TEST(Lark, CommonTerminalsAreImported) {
  expect_language(GrammarKind::kLark,
                  "%import common.INT\n%import common (LF, WORD)\n%import common.CNAME -> NAME\n"
                  "start: INT \" \" WORD LF NAME? X\nX.2: \"x\"",
                  {"12 ab\nx", "1 Z\na_1x"}, {"12 a1\nx", "ab ab\nx", "12 ab\n1x"});
}

TEST(Regex, TheDotIsAllButALineFeedExceptInJsonSchema) {
  for (const auto& [kind, text] :
       {std::pair{GrammarKind::kRegex, "a.b"}, std::pair{GrammarKind::kLark, "start: /a.b/"},
        std::pair{GrammarKind::kLark, "start: %inner@/x (lark, utf8) \"start: /a.b/\""}})
    expect_language(kind, text,
                    {"axb", "a\rb",
                     "a\xE2\x80\xA8"
                     "b"},
                    {"a\nb"});
  expect_language(GrammarKind::kLark, "start: /a.b/s", {"a\nb", "a\rb"}, {"ab"});
  expect_language(GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^a.b$"})", {R"("axb")"},
                  {R"("a\nb")", R"("a\rb")",
                   "\"a\xE2\x80\xA8"
                   "b\""});
}

TEST(Lark, EachSchemaIsAsStrictAsItSays) {
  const std::string overlapping =
      R"({"oneOf":[{"type":"integer"},{"type":"integer","minimum":2}]})";
  const std::string loose = "start: %json@/a " + overlapping;
  const std::string strict = "\"x\" %json!@/b {\"type\":\"null\"}";
  const auto both = compile_text(GrammarKind::kLark, loose + " " + strict, false);
  ASSERT_TRUE(both) << both.error().message;
  ASSERT_EQ((*both)->notes().size(), 1U);
  EXPECT_TRUE((*both)->notes()[0].starts_with("/a/oneOf "));
  EXPECT_TRUE(accepts(*both, "3xnull"));
  for (const std::string& text : {std::string("start: %json!@/b ").append(overlapping),
                                  std::string(loose).append(" %json!@/b ").append(overlapping)}) {
    const auto refused = compile_text(GrammarKind::kLark, text, false);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().pointer, "/b/oneOf");
  }
}

std::string inside(const char* kind, std::string_view definition,
                   const char* never = R"("</p>" "</f>")") {
  std::string quoted;
  for (const char c : definition)
    quoted += c == '\n' ? "\\n" : c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return std::string("start: \"<\" (%inner@/x (") + kind + ", utf8, never = " + never + ") \"" +
         quoted + "\") \"</p>\"";
}

TEST(Lark, AMarkerIsTakenOutOfAClientsText) {
  for (const auto& [kind, text] :
       {std::pair{"regex", "[a-z</>]*"}, std::pair{"lark", "start: C*\nC: /[a-z<\\/>]/"},
        std::pair{"lark", "start: (\"<\" | \"/\" | W | \">\")*\nW: /[a-z]+/"},
        std::pair{"gbnf", "root ::= c*\nc ::= [a-z</>]"}}) {
    expect_language(GrammarKind::kLark, inside(kind, text),
                    {"<abc</p>", "<</q><p></p>", "<</p</p>"},
                    {"<a</p>b</p>", "<</f></p>", "<</p></p>"});
    const auto grammar = compile_text(GrammarKind::kLark, inside(kind, text));
    ASSERT_TRUE(grammar);
    EXPECT_TRUE((*grammar)->notes().empty()) << "regular: exact";
  }
  expect_refused(GrammarKind::kLark, inside("regex", "x</p>y"), "invalid_grammar", "/x");
}

TEST(Lark, WhatTerminalsCouldSpellTogetherIsSaid) {
  const char* nested = "start: \"(\" T? (start T?)* \")\"\nT: /[a-z<\\/>]+/";
  const auto within = compile_text(GrammarKind::kLark, inside("lark", nested));
  ASSERT_TRUE(within) << within.error().message;
  EXPECT_FALSE(accepts(*within, "<(a</p>)</p>"));
  EXPECT_TRUE(accepts(*within, "<((b)a)</p>"));
  const char* apart = "start: \"(\" (start | A B)* \")\"\nA: \"a<\"\nB: /\\/p>+/";
  const auto noted = compile_text(GrammarKind::kLark, inside("lark", apart));
  ASSERT_TRUE(noted) << noted.error().message;
  const char* numbers = "start: N | \"(\" start \"+\" start \")\"\nN: /[0-9]+/";
  const auto silent = compile_text(GrammarKind::kLark, inside("lark", numbers));
  ASSERT_TRUE(silent) << silent.error().message;
  EXPECT_TRUE((*silent)->notes().empty());
  const char* signs =
      "start: T | \"(\" start O start \")\"\nO: \"<\" | \"/\" | \"<\\/\"\nT: /[a-z]+>?/";
  const auto operators = compile_text(GrammarKind::kLark, inside("lark", signs));
  ASSERT_TRUE(operators) << operators.error().message;
  ASSERT_EQ((*operators)->notes().size(), 1U);
  EXPECT_TRUE((*operators)->notes()[0].starts_with("/x: "));
}

TEST(Lark, WhatTerminalsCouldSpellIsSearchedWithinTheLimits) {
  std::string names;
  std::string terminals;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "T" + std::to_string(i);
    names.append(" | ").append(name);
    terminals += "\n" + name + ": /[a-z]{1,1900}" + std::to_string(i) + "/";
  }
  const std::string text = inside("lark", "start: \"(\" (start" + names + ")* \")\"" + terminals,
                                  R"("</parameter>" "</function>" "</tool_call>" "</arguments>")");
  const auto began = std::chrono::steady_clock::now();
  const auto refused = compile({.kind = GrammarKind::kLark, .text = text}, test_vocabulary(),
                               {.size = 100'000, .time = std::chrono::minutes(10)});
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 400);
  EXPECT_EQ(refused.error().code, "grammar_too_large");
  EXPECT_EQ(refused.error().pointer, "/x");
}

TEST(Lark, WhatIsNotEnforcedIsSaidOnce) {
  const char* schema =
      R"({"type":"object","properties":{"a":{"oneOf":[{"type":"integer"},{"minimum":2}]},)"
      R"("b":{"type":"integer","not":{"const":1}}},"required":["a"],"additionalProperties":false})";
  const auto lax =
      compile_text(GrammarKind::kLark, std::string("start: %json?@/a ") + schema, false);
  ASSERT_TRUE(lax) << lax.error().message;
  ASSERT_EQ((*lax)->notes().size(), 1U) << "notes of what was given up are not of the grammar";
  EXPECT_TRUE((*lax)->notes()[0].starts_with(
      "/a/properties/b/not is not enforced, and of /a only types and required are: "))
      << (*lax)->notes()[0];
  const auto never = compile_text(
      GrammarKind::kLark,
      R"(start: %json?@/a {"type":"object","properties":{"a":false},"required":["a"]})", false);
  ASSERT_TRUE(never) << never.error().message;
  ASSERT_EQ((*never)->notes().size(), 1U);
  EXPECT_EQ((*never)->notes()[0], "/a: only types and required are enforced.");
}

TEST(Lark, GrammarsInsideTextsAreSpelledAsTheText) {
  const char* text =
      "start: \"\\\"\" %inner@/x (lark, json) \"start: A+ \\\"\\\\\\\"\\\"\\nA: /[a\\\\n]/\" "
      "\"\\\"\"";
  expect_language(GrammarKind::kLark, text, {"\"a\\\"\"", "\"\\na\\\"\""}, {"\"a\"", "\"a\"\""});
  expect_refused(GrammarKind::kLark, "start: %inner@/x (lark, json) \"start: <|tool|>\"",
                 "unsupported_grammar", "/x");
  expect_refused(GrammarKind::kLark, "start: %inner@/x (regex, utf8) \"a**\"", "invalid_grammar",
                 "/x");
}

TEST(Lark, ArgumentsOneByOne) {
  const std::string layout =
      "%arguments (raw, open = \"<\", value = \"=\", close = \">\", never = \">\") ";
  expect_language(
      GrammarKind::kLark,
      "start: " + layout +
          R"({"properties":{"s":{"type":"string"},"u":{"type":["string","integer"]}},"required":["s"],"additionalProperties":false})",
      {"<s=x \"1>", "<s=><u=12>", "<s=a><u=a1>", "<s=5><u=x 5>"},
      {"<u=1>", "<s=a><u= -5.0 >", "<s=a><t=1>", "<s=a><u=1"});
  expect_language(
      GrammarKind::kLark,
      "start: %arguments (python, open = \"\", value = \"=\", close = \"\", between = \", \") "
      R"({"properties":{"b":{"type":"boolean"},"l":{"type":"array","items":{"enum":[null,"x"]}}},"required":["b"],"additionalProperties":false})",
      {"b=True", "b=False, l=[None, \"x\"]"}, {"b=true", "l=[]", "b=True, l=[null]"});
}

TEST(Lark, WhatCannotBeEnforcedMayBeLax) {
  expect_language(GrammarKind::kLark, "start: %json? {\"not\":{}}", {"{}", "{\"a\": 1}"}, {"1"});
  expect_refused(GrammarKind::kLark, "start: %json {\"not\":{}}", "unsupported_grammar", "/not");
  // Texts stay raw where readers take them so; names that cannot be written are left out.
  const std::string start =
      "start: %arguments? (raw, open = \"<\", value = \"=\", close = \">\", never = \">\") ";
  const std::string schema =
      R"({"type":"object","properties":{"s":{"type":"string"},"l":{"type":"array","uniqueItems":true},"u":{}},"required":["s"]})";
  const std::vector<std::string> good = {"<s=Paris>", "<s=a><l=[1]><u=\"x\">", "<s=><v=true>"};
  const std::vector<std::string> bad = {"", "<l=[1]>", "<s=a><l=x>", "<s=a><u=x>"};
  expect_language(GrammarKind::kLark, start + schema, good, bad);
  std::string named = schema;
  named.replace(named.find("\"s\""), 0, R"("<>":{"type":"string"},)");
  expect_language(GrammarKind::kLark, start + named, good, bad);
  expect_language(GrammarKind::kLark, "start: %json? " + schema,
                  {R"({"s": "a"})", R"({"s": "", "l": []})"}, {"{}", R"({"s": 1})"});
}

TEST(Lark, ArgumentsOfCallsAreObjects) {
  for (const char* schema : {"{}", R"({"properties":{"a":{"type":"integer"}}})",
                             R"({"type":["object","null"]})", R"({"anyOf":[{},{"const":1}]})"})
    expect_language(GrammarKind::kLark, std::string("start: %json@/p (object) ") + schema,
                    {"{}", R"({"a": 1})"}, {"1", "null", "\"a\"", "[]"});
  expect_refused(GrammarKind::kLark, R"(start: %json (object) {"type":"string"})",
                 "invalid_grammar");
}

}  // namespace
}  // namespace tandem::grammar
