#include "base/json_scan.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/json_skip.h"

namespace tandem {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512};

std::string value(std::string_view text, const JsonScan& scan, std::string_view key) {
  const JsonMemberSpan* const member = scan.find(key);
  return member == nullptr ? "none" : std::string(json_value_of(text, *member));
}

TEST(JsonScan, FindsTheOutermostMembers) {
  const std::string text =
      R"( { "a" : 1 , "b":[1, [2,{"a":3}] ,"]"],"c":{"a":{}},"d":"\"}","e":null,"f":tru)"
      R"(e } )";
  const auto scan = scan_json(text);
  ASSERT_TRUE(scan) << scan.error().message;
  EXPECT_FALSE(scan->is_array());
  EXPECT_EQ(scan->members().size(), 6U);
  EXPECT_EQ(value(text, *scan, "a"), "1");
  EXPECT_EQ(value(text, *scan, "b"), R"([1, [2,{"a":3}] ,"]"])");
  EXPECT_EQ(value(text, *scan, "c"), R"({"a":{}})");
  EXPECT_EQ(value(text, *scan, "d"), R"("\"}")");
  EXPECT_EQ(value(text, *scan, "e"), "null");
  EXPECT_EQ(value(text, *scan, "f"), "true");
  EXPECT_EQ(scan->find("b")->elements, 3U);
  EXPECT_EQ(scan->find("b")->first, JsonValue::Kind::kNumber);
  EXPECT_EQ(scan->find("c")->kind, JsonValue::Kind::kObject);
  EXPECT_EQ(text[scan->begin()], '{');
  EXPECT_EQ(text[scan->end() - 1], '}');
}

TEST(JsonScan, FindsTheElementsOfAnArray) {
  const std::string text = R"([ 1,"x",[],{"a":1} ])";
  const auto scan = scan_json(text);
  ASSERT_TRUE(scan);
  EXPECT_TRUE(scan->is_array());
  ASSERT_EQ(scan->members().size(), 4U);
  EXPECT_EQ(json_value_of(text, scan->members()[3]), R"({"a":1})");
  EXPECT_EQ(scan->find(""), nullptr);
}

TEST(JsonScan, AKeyWithEscapesIsTheSameKey) {
  const std::string text = R"({"mo\u0064el":"a","m\u00e9":1,"x\ud83d\ude00":2})";
  const auto scan = scan_json(text);
  ASSERT_TRUE(scan);
  EXPECT_EQ(json_text_of(text, scan->find("model")), "a");
  EXPECT_NE(scan->find("m\u00e9"), nullptr);
  EXPECT_NE(scan->find("x\U0001F600"), nullptr);
}

TEST(JsonScan, NamesWhatStandsTwice) {
  const auto scan = scan_json(R"({"model":"a","x":1,"x":2,"mo\u0064el":"b"})");
  ASSERT_TRUE(scan);
  EXPECT_EQ(scan->duplicate({"stream", "model"}), "model");
  EXPECT_EQ(scan->duplicate({"stream"}), std::nullopt);
}

TEST(JsonScan, RefusesWhatParseJsonRefuses) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1 2]",
                           "[1,]",
                           "[,1]",
                           "{,}",
                           R"({"a":})",
                           R"({"a" 1})",
                           "{a:1}",
                           "[01]",
                           "[1.]",
                           "[.5]",
                           "[-]",
                           "[+1]",
                           "[1e]",
                           "[1e+]",
                           "[nul]",
                           "[nullx]",
                           "[truee]",
                           "[fals]",
                           R"(["\x"])",
                           R"(["\ud800"])",
                           R"(["\udc00"])",
                           R"(["\ud800\u0041"])",
                           R"(["\u12g4"])",
                           R"(["\u12)",
                           R"(["\)",
                           "[1]x",
                           "{}{}",
                           R"(["a)",
                           "[\"\x01\"]",
                           "[\"\n\"]",
                           "[}",
                           "{]",
                           R"({"a":1,})",
                           R"({"a":1 "b":2})",
                           R"({"a":1,,"b":2})",
                           "[1,2",
                           "[\"\xff\"]",
                           "[\"\xed\xa0\x80\"]",
                           R"({"a":{"b":[1,2}})"}) {
    EXPECT_FALSE(scan_json(text)) << text;
    EXPECT_FALSE(parse_json(text)) << text;
  }
  EXPECT_FALSE(scan_json("1"));  // a document, but nothing to look into
}

TEST(JsonScan, RefusesADepthBombEarly) {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_TRUE(scan_json(deep));
  EXPECT_TRUE(parse_json(deep));
  const std::string bomb = std::string(65, '[') + std::string(65, ']');
  EXPECT_FALSE(scan_json(bomb));
  EXPECT_FALSE(parse_json(bomb));
  std::string mixed;
  for (int i = 0; i < 1 << 20; ++i) mixed += i % 2 == 0 ? "{\"a\":" : "[";
  EXPECT_FALSE(scan_json(mixed));
  EXPECT_FALSE(scan_json("[[1]]", {.max_depth = 1}));
}

TEST(JsonScan, BoundsTheMembersItWritesDown) {
  std::string text = "{\"a\":1";
  for (int i = 0; i < 5000; ++i) text += ",\"a\":1";
  text += '}';
  EXPECT_FALSE(scan_json(text));
  EXPECT_TRUE(scan_json(text, {.max_members = 1 << 20}));
}

TEST(JsonScan, CountsLongListsOfIntegers) {
  for (const char* separator : {",", ", ", " , "}) {
    for (const int count : {1, 2, 30, 500, 5001}) {
      std::string list = "[";
      for (int i = 0; i < count; ++i)
        list += (i == 0 ? "" : separator) + std::to_string(i * 7919 % 150000);
      const std::string text = "{\"ids\":" + list + "],\"x\":2}";
      const auto scan = scan_json(text);
      ASSERT_TRUE(scan) << separator << count;
      EXPECT_EQ(scan->find("ids")->elements, static_cast<size_t>(count));
      EXPECT_EQ(value(text, *scan, "x"), "2");
    }
  }
}

TEST(JsonScan, ReadsScalars) {
  const std::string text =
      R"({"s":"a\n\u00e9","i":9223372036854775807,"r":1.5,"t":true,"f":false})";
  const auto scan = scan_json(text);
  ASSERT_TRUE(scan);
  EXPECT_EQ(json_text_of(text, scan->find("s")), "a\n\u00e9");
  EXPECT_EQ(json_integer_of(text, scan->find("i")), INT64_MAX);
  EXPECT_EQ(json_integer_of(text, scan->find("r")), std::nullopt);
  EXPECT_EQ(json_integer_of(text, scan->find("s")), std::nullopt);
  EXPECT_TRUE(json_flag_of(text, scan->find("t")));
  EXPECT_FALSE(json_flag_of(text, scan->find("f")));
  EXPECT_FALSE(json_flag_of(text, nullptr));
}

// Text without an end for the skipping loops: every place of every kind of byte around the borders
// of blocks, all levels against the scalar one.
TEST(JsonSkip, EveryLevelSkipsStringsAlike) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {
      "a",        "\\n", "\\\\", "\\\"", "\\u0041", "\\ud83d\\ude00", "\\\\\\\\\\\\",
      "\xC3\xA9", "\"",  "\x01", "\\q",  "\\ud83d", "\\u00",          "bcdefghijklmnopqrstuvwxyz"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const size_t count = random() % 40;
    for (size_t i = 0; i < count; ++i) {
      const size_t kinds = round % 4 == 0 ? parts.size() : 8;
      text += parts[random() % kinds];
      if (random() % 4 == 0) text += std::string(random() % 70, 'x');
    }
    if (round % 3 != 0) text += '"';
    text += "tail";
    const char* const end = text.data() + text.size();
    const char* const expected = json_skip(CpuLevel::kScalar).string(text.data(), end);
    for (const CpuLevel level : kLevels) {
      EXPECT_EQ(json_skip(level).string(text.data(), end), expected) << text;
    }
  }
}

// What a level skips must be integers and commas, and an element must begin where it stops.
TEST(JsonSkip, EveryLevelSkipsOnlyWholeIntegers) {
  std::mt19937 random(11);
  const std::vector<std::string> parts = {"1",  "0",   "12", "345", "70000", ",", ", ",
                                          "-1", "1.5", "01", " ",   ",,",    "x"};
  for (int round = 0; round < 20000; ++round) {
    std::string text = "[";
    const size_t count = 20 + random() % 60;
    const bool clean = round % 4 != 0;
    for (size_t i = 0; i < count; ++i) {
      if (clean) {
        text += parts[random() % 5] + (random() % 2 == 0 ? "," : ", ");
      } else {
        text += parts[random() % (i % 16 == 0 ? parts.size() : 6)];
      }
    }
    text += "3]";
    const bool valid = scan_json(text).has_value();
    EXPECT_EQ(valid, parse_json(text).has_value()) << text;
    for (const CpuLevel level : kLevels) {
      size_t skipped = 0;
      const char* const begin = text.data() + 1;
      const char* const stop =
          json_skip(level).integers(begin, text.data() + text.size(), &skipped);
      const std::string_view gone(begin, static_cast<size_t>(stop - begin));
      EXPECT_EQ(static_cast<size_t>(std::count(gone.begin(), gone.end(), ',')), skipped);
      if (gone.empty()) continue;
      EXPECT_EQ(gone.back(), ',');
      const std::string list = "[" + std::string(gone.substr(0, gone.size() - 1)) + "]";
      EXPECT_TRUE(parse_json(list)) << list;
    }
  }
}

}  // namespace
}  // namespace tandem
