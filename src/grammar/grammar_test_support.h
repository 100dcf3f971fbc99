// A vocabulary for tests of grammars, and whether a grammar takes a text: read byte by byte and in
// longer tokens, with every mask on the way compared with what tokens are really accepted.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/grammar.h"

namespace tandem::grammar {

// The bytes (ids 0 to 255), some longer tokens, <|tool|> and <|end|>; <|eos|> ends generation.
struct TestVocabulary {
  static constexpr int32_t kTool = 256;
  static constexpr int32_t kEnd = 257;
  static constexpr int32_t kEos = 258;
  static inline const std::vector<std::string> kLonger = {"{\"",        "\": ",
                                                          "\": \"",     "\", \"",
                                                          "\"}",        "}}",
                                                          "true",       "false",
                                                          "null",       "name",
                                                          "na",         "me",
                                                          "ab",         "abc",
                                                          "aaaa",       "12",
                                                          "123",        "0.5",
                                                          ", ",         "], [",
                                                          "\xC3\xA9",   "\xE6\x97\xA5\xE6\x9C\xAC",
                                                          "\xE6\x97",   "  ",
                                                          "\n\n",       "\\n",
                                                          "\"a\"",      "a\", \"b",
                                                          "<tool",      "_call>",
                                                          "hello",      " world",
                                                          "hello world"};
};

inline std::shared_ptr<const Vocabulary> test_vocabulary() {
  static const auto kVocabulary = [] {
    VocabularyTable table;
    for (int byte = 0; byte < 256; ++byte) table.bytes.emplace_back(1, static_cast<char>(byte));
    table.bytes.resize(259);
    for (const std::string& text : TestVocabulary::kLonger) table.bytes.push_back(text);
    table.special = {{"<|tool|>", TestVocabulary::kTool}, {"<|end|>", TestVocabulary::kEnd}};
    table.end_of_generation = {TestVocabulary::kEos};
    return std::make_shared<const Vocabulary>(std::move(table));
  }();
  return kVocabulary;
}

inline Result<std::shared_ptr<const Grammar>> compile_text(protocol::GrammarKind kind,
                                                           std::string_view text,
                                                           bool strict = true) {
  return compile({.kind = kind, .text = std::string(text), .strict = strict}, test_vocabulary());
}

// Whether the mask says of every token what accept() says.
inline void check_mask(const Matcher& matcher, std::string_view where) {
  TokenMask mask;
  const auto made = matcher.mask(mask);
  ASSERT_TRUE(made) << made.error().message << " after " << where;
  for (int32_t token = 0; token < static_cast<int32_t>(mask.tokens()); ++token) {
    Matcher copy = matcher;
    ASSERT_EQ(mask.has(token), copy.accept(token)) << "token " << token << " after " << where;
  }
}

inline bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text,
                    bool masks = false) {
  Matcher matcher(grammar);
  for (size_t i = 0; i < text.size(); ++i) {
    if (masks) check_mask(matcher, text.substr(0, i));
    if (!matcher.accept(static_cast<uint8_t>(text[i]))) return false;
  }
  if (masks && matcher.accepting()) check_mask(matcher, text);
  return matcher.accepting();
}

// Expects that the grammar compiles, takes the first texts and none of the others.
inline void expect_language(protocol::GrammarKind kind, std::string_view text,
                            const std::vector<std::string>& good,
                            const std::vector<std::string>& bad, bool strict = true) {
  const auto grammar = compile_text(kind, text, strict);
  ASSERT_TRUE(grammar) << text << ": " << grammar.error().message << " at "
                       << grammar.error().pointer.value_or("");
  for (const std::string& one : good)
    EXPECT_TRUE(accepts(*grammar, one, true)) << text << " must take " << one;
  for (const std::string& one : bad)
    EXPECT_FALSE(accepts(*grammar, one)) << text << " must not take " << one;
}

inline void expect_refused(protocol::GrammarKind kind, std::string_view text, std::string_view code,
                           std::string_view pointer = "") {
  const auto grammar = compile_text(kind, text);
  ASSERT_FALSE(grammar) << text;
  EXPECT_EQ(grammar.error().status, 400);
  EXPECT_EQ(grammar.error().code, code) << text << ": " << grammar.error().message;
  EXPECT_EQ(grammar.error().pointer.value_or(""), pointer)
      << text << ": " << grammar.error().message;
}

}  // namespace tandem::grammar
