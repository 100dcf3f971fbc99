#include <gtest/gtest.h>

#include "base/json_splice.h"
#include "base/json_value.h"
#include "base/reply_text.h"

namespace tandem {
namespace {

TEST(Json, KeepsKeyOrderAndNumberText) {
  const std::string text =
      R"({"b":1.50,"a":9223372036854775807,"c":[null,true,1e-05,"x\ny"],"b2":{}})";
  auto value = parse_json(text);
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(value->dump(), text);
  EXPECT_EQ(value->find("a")->as_integer(), 9223372036854775807);
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1 2]",
                           "[1,]",
                           "{\"a\":}",
                           "{\"a\" 1}",
                           "{a:1}",
                           "01",
                           "1.",
                           "-",
                           "+1",
                           "nul",
                           "nullx",
                           "truee",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "[1]x",
                           "{}{}",
                           "\"a",
                           "[\"\x01\"]",
                           "'a'",
                           "1e",
                           "NaN",
                           "{\"a\":1,}",
                           "[,1]",
                           "]",
                           "}",
                           "{\"a\": null\014 \"b\": 1}",
                           "[null\014]"}) {
    EXPECT_FALSE(parse_json(text)) << text;
  }
}

TEST(Json, ReadsScalarsAtTheTop) {
  for (const char* text : {"1", "-0.5", "\"s\"", "true", "null", "[]", "{}", " {\"a\":[[]]} "}) {
    EXPECT_TRUE(parse_json(text)) << text;
  }
}

TEST(Json, RefusesInvalidUtf8AndDepth) {
  EXPECT_NE(parse_json("{\"prompt\":\"\xc4\xe3\"}").error().message.find("UTF-8"),
            std::string::npos);
  std::string deep(10000, '[');
  deep += std::string(10000, ']');
  EXPECT_FALSE(parse_json(deep));
  std::string hidden = "{\"x\":" + deep + "}";
  EXPECT_FALSE(parse_json(hidden));
  std::string shallow(60, '[');
  shallow += std::string(60, ']');
  EXPECT_TRUE(parse_json(shallow));
}

TEST(Json, DumpMakesInvalidUtf8Valid) {
  EXPECT_EQ(JsonValue::string("a\xff"
                              "b\xe2\x82")
                .dump(),
            "\"a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\"");
  EXPECT_TRUE(is_valid_utf8(sanitize_utf8("\xf0\x9f\x98 \xed\xa0\x80")));
}

TEST(JsonSplice, LeavesOtherBytesAlone) {
  const std::string text =
      " { \"a\" : 1.0 , \"t\\u0061ndem\":[{\"}\":\"]\"}] ,\"z\":12345678901234567890 } ";
  auto inserted = json_insert_member(text, "tandem", "{\"x\":1}");
  ASSERT_TRUE(inserted);
  EXPECT_EQ(*inserted,
            " {\"tandem\":{\"x\":1}, \"a\" : 1.0 , \"t\\u0061ndem\":[{\"}\":\"]\"}] "
            ",\"z\":12345678901234567890 } ");
  auto erased = json_erase_member(*inserted, "tandem");
  ASSERT_TRUE(erased);
  EXPECT_EQ(*erased, " {\"a\" : 1.0 , \"z\":12345678901234567890 } ");
  EXPECT_EQ(*json_erase_member("{\"a\":1}", "a"), "{}");
  EXPECT_EQ(*json_erase_member("{\"a\":1,\"a\":2}", "a"), "{}");
  EXPECT_EQ(*json_erase_member("{\"a\":1 , \"b\":2}", "a"), "{\"b\":2}");
  EXPECT_EQ(*json_replace_member("{\"a\":1,\"b\":[2]}", "b", "3"), "{\"a\":1,\"b\":3}");
  EXPECT_EQ(*json_insert_member("{}", "b", "3"), "{\"b\":3}");
  EXPECT_FALSE(json_insert_member("[1]", "b", "3"));
}

TEST(SseFrame, WritesOneDataLinePerLine) {
  EXPECT_EQ(sse_frame("a"), "data: a\n\n");
  EXPECT_EQ(sse_frame("a\nb"), "data: a\ndata: b\n\n");
  EXPECT_EQ(sse_frame(""), "data: \n\n");
}

TEST(ErrorBody, HasTheFourFieldsOfOpenAi) {
  EXPECT_EQ(error_body({400, "bad", "why \xFF", "/a/0/b~1c"}),
            "{\"error\":{\"message\":\"why "
            "\uFFFD\",\"type\":\"invalid_request_error\",\"param\":\"a[0].b/c\","
            "\"code\":\"bad\"}}");
  EXPECT_EQ(error_body({503, "busy", "no", ""}),
            R"({"error":{"message":"no","type":"server_error","param":null,"code":"busy"}})");
  EXPECT_EQ(error_json({429, "x", "y"}).find("error")->find("type")->as_string(),
            "rate_limit_error");
}

}  // namespace
}  // namespace tandem
