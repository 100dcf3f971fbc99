#include "base/json_splice.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string edited(const std::string& text, const std::function<void(JsonEdit&)>& change) {
  const auto scan = scan_json(text);
  EXPECT_TRUE(scan) << text;
  JsonEdit edit(*scan);
  change(edit);
  const auto edits = edit.edits();
  const auto whole = std::make_shared<const std::string>(text);
  const std::string out = splice(whole, edits).str();
  EXPECT_EQ(out, splice_text(text, edits));
  return out;
}

TEST(JsonEdit, SetsErasesAndAddsWithoutTouchingTheRest) {
  const std::string text = R"({ "a" : 1.50 ,"b":[1 , 2], "c":12345678901234567890 })";
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.set("b", "3"); }),
            R"({ "a" : 1.50 ,"b":3, "c":12345678901234567890 })");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.set("d", "{}"); }),
            R"({"d":{}, "a" : 1.50 ,"b":[1 , 2], "c":12345678901234567890 })");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.erase("a"); }),
            R"({ "b":[1 , 2], "c":12345678901234567890 })");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.erase("c"); }),
            R"({ "a" : 1.50 ,"b":[1 , 2] })");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.erase("x"); }), text);
}

TEST(JsonEdit, CommasAreRightWhateverIsErased) {
  const std::string text = R"({"a":1, "b":2 ,"c":3 , "d":4})";
  for (int erased = 0; erased < 16; ++erased) {
    for (const bool added : {false, true}) {
      const std::string out = edited(text, [&](JsonEdit& edit) {
        for (int i = 0; i < 4; ++i) {
          if ((erased >> i & 1) != 0) edit.erase(std::string(1, static_cast<char>('a' + i)));
        }
        if (added) edit.set("new", "0");
      });
      const auto json = parse_json(out);
      ASSERT_TRUE(json) << out;
      EXPECT_EQ(json->find("new") != nullptr, added);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(json->find(std::string(1, static_cast<char>('a' + i))) == nullptr,
                  (erased >> i & 1) != 0);
      }
    }
  }
}

TEST(JsonEdit, EveryMemberOfANameIsSetOrErased) {
  const std::string text = R"({"a":1,"b":2,"\u0061":3})";
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.erase("a"); }), R"({"b":2})");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.set("a", "0"); }),
            R"({"a":0,"b":2,"\u0061":0})");
}

TEST(JsonEdit, EditsInsideAMember) {
  const std::string text = R"({"x":{"a":1,"b":2},"y":3})";
  const auto scan = scan_json(text);
  const JsonMemberSpan& x = *scan->find("x");
  const auto inside = scan_json(json_value_of(text, x));
  JsonEdit inner(*inside, x.value_begin);
  inner.set("b", "7");
  inner.set("c", "8");
  JsonEdit outer(*scan);
  outer.add(inner.edits());
  outer.erase("y");
  EXPECT_EQ(splice_text(text, outer.edits()), R"({"x":{"c":8,"a":1,"b":7}})");
  outer.erase("x");  // the whole member goes, with what was edited in it
  EXPECT_EQ(splice_text(text, outer.edits()), "{}");
}

TEST(JsonEdit, LastWordCounts) {
  const std::string text = R"({"a":1})";
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.erase("a"), edit.set("a", "2"); }),
            R"({"a":2})");
  EXPECT_EQ(edited(text, [](JsonEdit& edit) { edit.set("b", "2"), edit.erase("b"); }), text);
}

// Property: after any edits the document has the wanted values, and every member that was not
// edited stands there byte for byte, in the old order.
TEST(JsonEdit, WhatIsNotEditedStaysByteForByte) {
  std::mt19937 random(3);
  const std::vector<std::string> values = {
      "1",    "-0.0", "1e400", "\"\\u00e9\\n\"",      "[1 , [2]]", "{ \"a\" : 1 }", "null",
      "\"\"", "[]",   "{}",    "18446744073709551616"};
  for (int round = 0; round < 3000; ++round) {
    const auto space = [&] { return std::string(random() % 3, " \n\t"[random() % 3]); };
    std::string text = space() + "{" + space();
    std::vector<std::string> members;
    const size_t count = random() % 8;
    for (size_t i = 0; i < count; ++i) {
      members.push_back("\"k" + std::to_string(i) + "\"" + space() + ":" + space() +
                        values[random() % values.size()]);
      text += (i == 0 ? "" : "," + space()) + members.back() + space();
    }
    text += "}" + space();
    std::vector<int> fate(count);  // 0 stays, 1 set, 2 erased
    for (int& one : fate) one = static_cast<int>(random() % 3);
    const bool added = random() % 2 == 0;
    const std::string out = edited(text, [&](JsonEdit& edit) {
      for (size_t i = 0; i < count; ++i) {
        if (fate[i] == 1) edit.set("k" + std::to_string(i), "{\"set\":true}");
        if (fate[i] == 2) edit.erase("k" + std::to_string(i));
      }
      if (added) edit.set("fresh", "\"y\"");
    });
    const auto json = parse_json(out);
    ASSERT_TRUE(json) << text << "\n" << out;
    EXPECT_EQ(json->find("fresh") != nullptr, added);
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const JsonValue* const found = json->find("k" + std::to_string(i));
      EXPECT_EQ(found == nullptr, fate[i] == 2);
      if (fate[i] == 1) EXPECT_EQ(found->dump(), R"({"set":true})");
      if (fate[i] != 0) continue;
      at = out.find(members[i], at);
      ASSERT_NE(at, std::string::npos) << text << "\n" << out;
    }
  }
}

TEST(BodyPieces, LongRunsAreSharedShortOnesCopied) {
  const auto whole = std::make_shared<const std::string>(std::string(100000, 'x') + "end");
  BodyPieces pieces;
  pieces.append("{");
  pieces.append_slice(whole, 0, 100000);
  pieces.append_slice(whole, 100000, 100003);
  pieces.append("}");
  const auto views = pieces.views();
  ASSERT_EQ(views.size(), 3U);
  EXPECT_EQ(views[1].data(), whole->data());
  EXPECT_EQ(views[2], "end}");
  EXPECT_EQ(pieces.size(), 100005U);
  const BodyPieces copy = pieces;
  EXPECT_EQ(copy.views()[1].data(), whole->data());
  EXPECT_TRUE(BodyPieces() == "");
  EXPECT_TRUE(BodyPieces("abc") == "abc");
}

}  // namespace
}  // namespace tandem
