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

}  // namespace
}  // namespace tandem::grammar
