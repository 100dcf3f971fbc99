#include "api/api_test_support.h"

namespace tandem::api {
namespace {

TEST(AnswerFormats, MayBeNamedAsOtherServersNameThem) {
  using Kind = AnswerFormat::Kind;
  struct Case {
    const char* field;
    Kind kind;
    const char* pointer;
  };
  constexpr Case kCases[] = {
      {R"("guided_json":{"type":"object"})", Kind::kJsonSchema, "/guided_json"},
      {R"("json_schema":"{\"type\":\"object\"}")", Kind::kJsonSchema, "/json_schema"},
      {R"("guided_regex":"a+")", Kind::kRegex, "/guided_regex"},
      {R"("regex":"a+")", Kind::kRegex, "/regex"},
      {R"("guided_choice":["a","b"])", Kind::kChoice, "/guided_choice"},
      {R"("grammar":"root ::= \"a\"")", Kind::kGbnf, "/grammar"},
      {R"("ebnf":"root ::= \"a\"")", Kind::kGbnf, "/ebnf"},
      {R"("guided_grammar":"start: \"a\"")", Kind::kLark, "/guided_grammar"},
      {R"("structured_outputs":{"regex":"a+"})", Kind::kRegex, "/structured_outputs/regex"},
      {R"("structured_outputs":{"json":{}})", Kind::kJsonSchema, "/structured_outputs/json"},
      {R"("structured_outputs":{"json_object":true})", Kind::kJsonObject,
       "/structured_outputs/json_object"},
      {R"("structured_outputs":{"json":null,"choice":["x"]})", Kind::kChoice,
       "/structured_outputs/choice"},
      {R"("guided_regex":"","guided_choice":[],"structured_outputs":{})", Kind::kText, ""},
  };
  for (const Case& one : kCases) {
    for (const auto& request : {chat("," + std::string(one.field)),
                                completion(",\"prompt\":\"x\"," + std::string(one.field))}) {
      ASSERT_TRUE(request) << one.field << request.error().message;
      EXPECT_EQ(request->format.kind, one.kind) << one.field;
      EXPECT_EQ(request->format.pointer, one.pointer) << one.field;
    }
  }
}

TEST(AnswerFormats, WhatIsNoFormatIsRefusedWhereItStands) {
  const auto two = chat(R"(,"response_format":{"type":"json_object"},"regex":"a")");
  ASSERT_FALSE(two);
  EXPECT_EQ(two.error().status, 400);
  EXPECT_EQ(chat(R"(,"guided_choice":["a",1])").error().pointer, "/guided_choice/1");
  for (const char* flag : {R"("true")", "1", "{}"}) {
    const auto refused = chat(std::string(R"(,"structured_outputs":{"json_object":)") + flag + "}");
    ASSERT_FALSE(refused) << flag;
    EXPECT_EQ(refused.error().code, "invalid_type");
    EXPECT_EQ(refused.error().pointer, "/structured_outputs/json_object");
  }
  for (const char* unknown : {R"({"schema":{}})", R"({"regexp":"a"})"}) {
    const auto refused = chat(std::string(R"(,"structured_outputs":)") + unknown);
    ASSERT_FALSE(refused) << unknown;
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_EQ(refused.error().pointer, "/structured_outputs");
  }
}

}  // namespace
}  // namespace tandem::api
