#include "eval/journal.h"

#include "eval/eval_test_support.h"
#include "eval/items.h"

namespace tandem::eval {
namespace {

JsonValue run(int64_t limit) { return JsonValue::object({{"limit", JsonValue::integer(limit)}}); }
JsonValue result(int64_t value) { return JsonValue::object({{"v", JsonValue::integer(value)}}); }

using JournalTest = EvalTest;
using ItemsTest = EvalTest;

TEST_F(JournalTest, FinishedItemsAreThereAgain) {
  {
    auto journal = Journal::open(path("j"), run(1));
    ASSERT_TRUE(journal);
    ASSERT_TRUE(journal->append(4, result(40)));
    ASSERT_TRUE(journal->append(2, result(20)));
  }
  auto journal = Journal::open(path("j"), run(1));
  ASSERT_TRUE(journal) << journal.error().message;
  EXPECT_EQ(journal->size(), 2U);
  ASSERT_NE(journal->find(4), nullptr);
  EXPECT_EQ(*journal->find(4), result(40));
  EXPECT_EQ(journal->find(3), nullptr);
}

TEST_F(JournalTest, AnyTornEndIsCutOffAndWrittenOver) {
  {
    auto journal = Journal::open(path("j"), run(1));
    ASSERT_TRUE(journal->append(0, result(1)));
    ASSERT_TRUE(journal->append(1, result(2)));
  }
  const std::string whole = read("j");
  for (size_t length = 0; length <= whole.size(); ++length) {
    write("j", whole.substr(0, length));
    {
      auto journal = Journal::open(path("j"), run(1));
      ASSERT_TRUE(journal) << length << ": " << journal.error().message;
      for (const size_t item : {0, 1}) {
        if (journal->find(item) == nullptr) {
          ASSERT_TRUE(journal->append(item, result(static_cast<int64_t>(item) + 1)));
        }
      }
    }
    EXPECT_EQ(read("j"), whole) << length;
  }
}

TEST_F(JournalTest, AnotherRunsFileIsRefusedAndKept) {
  {
    ASSERT_TRUE(Journal::open(path("j"), run(1)));
  }
  const std::string before = read("j");
  const auto journal = Journal::open(path("j"), run(2));
  ASSERT_FALSE(journal);
  EXPECT_NE(journal.error().message.find("limit is 2 here and 1 there"), std::string::npos);
  EXPECT_EQ(read("j"), before);
}

TEST_F(JournalTest, DamageIsNamedWithItsLine) {
  write("j", "{\"run\":{\"limit\":1}}\n{\"item\":0\n{\"item\":1,\"result\":{}}\n");
  const auto damaged = Journal::open(path("j"), run(1));
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find("j line 2"), std::string::npos);
  write("other", "hello\n");
  EXPECT_FALSE(Journal::open(path("other"), run(1)));
  EXPECT_EQ(read("other"), "hello\n");
}

TEST_F(JournalTest, TwoRunsDoNotShareAFile) {
  auto first = Journal::open(path("j"), run(1));
  ASSERT_TRUE(first);
  EXPECT_FALSE(Journal::open(path("j"), run(1)));
}

TEST_F(ItemsTest, MistakesNameFileAndLine) {
  const struct {
    const char* text;
    const char* named;
  } rows[] = {
      {"{\"question\":\"a\",\"answer\":\"b\"}\n\n{\"question\":\"a\"}", "line 3: \"answer\""},
      {"[]", "line 1: It is not a JSON object"},
      {"{\"question\":\"a\"", "line 1: "},
      {"{\"question\":\"\",\"answer\":\"b\"}", "\"question\" is empty"},
      {"\n", "holds no items"}};
  for (const auto& row : rows) {
    const auto read = read_questions(write("q.jsonl", row.text));
    ASSERT_FALSE(read) << row.text;
    EXPECT_NE(read.error().message.find("q.jsonl"), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find(row.named), std::string::npos) << read.error().message;
  }
  EXPECT_FALSE(read_questions(path("absent")));
}

TEST_F(ItemsTest, ChoicesNeedAnAnswerAmongThem) {
  for (const char* text : {R"({"question":"q","choices":["a","b"],"answer":2})",
                           R"({"question":"q","choices":["a","b"],"answer":-1})",
                           R"({"question":"q","choices":["a","b"],"answer":"a"})",
                           R"({"question":"q","choices":["a"],"answer":0})",
                           R"({"question":"q","choices":["a",""],"answer":0})"})
    EXPECT_FALSE(read_choice_questions(write("c", text))) << text;
  const auto read = read_choice_questions(
      write("c", R"({"question":"q","choices":["a","b"],"answer":1,"id":7})"));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->items[0].answer, 1U);
}

}  // namespace
}  // namespace tandem::eval
