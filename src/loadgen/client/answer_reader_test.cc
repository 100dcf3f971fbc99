#include "loadgen/client/answer_reader.h"

#include <gtest/gtest.h>

#include "loadgen/client/conversation.h"

namespace tandem::loadgen {
namespace {

std::string event(std::string_view json) { return "data: " + std::string(json) + "\n\n"; }
std::string chat(std::string_view delta) {
  return event(R"({"choices":[{"delta":)" + std::string(delta) + "}]}");
}

RequestRecord finished(AnswerReader& reader) {
  RequestRecord record;
  record.input_tokens = 7;
  reader.finish(record);
  return record;
}

TEST(AnswerReader, TheOpeningRoleIsNoPieceAndEachContentIsOne) {
  AnswerReader reader(true);
  EXPECT_TRUE(reader.feed(chat(R"({"role":"assistant","content":""})"), 1));
  EXPECT_TRUE(reader.feed(chat(R"({"content":"a"})"), 2));
  EXPECT_TRUE(reader.feed(chat(R"({"reasoning_content":"b"})"), 2.5));
  EXPECT_TRUE(reader.feed(chat(R"({"tool_calls":[{"index":0}]})"), 4));
  EXPECT_TRUE(reader.feed(event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})"), 5));
  EXPECT_TRUE(
      reader.feed(event(R"({"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":9,)"
                        R"("prompt_tokens_details":{"cached_tokens":16}}})"),
                  5));
  EXPECT_TRUE(reader.feed(event("[DONE]"), 6));
  const RequestRecord record = finished(reader);
  EXPECT_EQ(record.error, ErrorKind::kNone);
  EXPECT_EQ(record.first, 2);
  EXPECT_EQ(record.last, 4);
  EXPECT_EQ(record.pieces, 3);
  EXPECT_EQ(reader.gaps(), (std::vector<double>{0.5, 1.5}));
  EXPECT_TRUE(record.counted_by_server);
  EXPECT_EQ(record.input_tokens, 20);
  EXPECT_EQ(record.output_tokens, 9);
  EXPECT_EQ(record.cached_tokens, 16);
  EXPECT_EQ(reader.text(), "a");
}

TEST(AnswerReader, ReadsPlainCompletionsInPiecesOfAnySize) {
  const std::string stream = event(R"({"choices":[{"text":"x"}]})") +
                             event(R"({"choices":[{"text":"","finish_reason":"length"}]})");
  for (size_t size = 1; size < stream.size(); ++size) {
    AnswerReader reader(false);
    for (size_t at = 0; at < stream.size(); at += size) reader.feed(stream.substr(at, size), 1);
    const RequestRecord record = finished(reader);
    EXPECT_EQ(record.error, ErrorKind::kNone) << size;
    EXPECT_EQ(record.pieces, 1);
    EXPECT_FALSE(record.counted_by_server);
    EXPECT_EQ(record.output_tokens, 1);
    EXPECT_EQ(record.input_tokens, 7);  // as planned
  }
}

TEST(AnswerReader, NamesWhatWentWrong) {
  struct Row {
    std::string stream;
    ErrorKind error;
  };
  const std::string piece = chat(R"({"content":"a"})");
  for (const Row& row : {Row{piece, ErrorKind::kBroken}, Row{event("[DONE]"), ErrorKind::kEmpty},
                         Row{piece + event(R"({"error":{"message":"no"}})"), ErrorKind::kStream},
                         Row{event("{"), ErrorKind::kBad}, Row{event("[1]"), ErrorKind::kBad},
                         Row{"", ErrorKind::kBroken}}) {
    AnswerReader reader(false);
    reader.feed(row.stream, 1);
    EXPECT_EQ(finished(reader).error, row.error) << row.stream;
  }
}

TEST(AnswerReader, CountsThatCannotBeAreNotBelieved) {
  AnswerReader reader(false);
  reader.feed(event(R"({"choices":[{"text":"x","finish_reason":"stop"}],"usage":)"
                    R"({"prompt_tokens":-5,"completion_tokens":99999999999999999}})"),
              1);
  const RequestRecord record = finished(reader);
  EXPECT_FALSE(record.counted_by_server);
  EXPECT_EQ(record.output_tokens, 1);
}

TEST(Conversation, AnAgentsHistoryGrowsByTheAnswerAndTheToolsResult) {
  BodyOptions options;
  options.model = "m";
  Conversation conversation(options);
  conversation.apply(
      {.append = {{Role::kSystem, 1, 0, "sys"}, {Role::kUser, 2, 0, "ask"}}, .output_tokens = 5},
      "");
  EXPECT_EQ(conversation.body(5),
            R"({"model":"m","messages":[{"role":"system","content":"sys"},)"
            R"({"role":"user","content":"ask"}],"max_tokens":5,"stream":true,)"
            R"("stream_options":{"include_usage":true}})");
  conversation.apply(
      {.keep_answer = true, .append = {{Role::kTool, 3, 0, "result"}}, .output_tokens = 5}, "did");
  const std::string body = conversation.body(5);
  EXPECT_NE(body.find(R"({"role":"user","content":"ask"},{"role":"assistant","content":"did"},)"
                      R"({"role":"user","content":"result"}])"),
            std::string::npos)
      << body;
}

TEST(Conversation, ACutHistoryKeepsItsBeginningAndOneRoleIsOneMessage) {
  BodyOptions options;
  options.ask_usage = false;
  Conversation conversation(options);
  conversation.apply({.append = {{Role::kUser, 1, 0, "a"}, {Role::kUser, 2, 0, "b"}}}, "");
  conversation.apply({.keep = 1, .append = {{Role::kUser, 3, 0, "c"}}}, "unused");
  EXPECT_NE(conversation.body(1).find(R"([{"role":"user","content":"ac"}])"), std::string::npos);
}

TEST(Conversation, TokenIdsHaveTheExactLength) {
  BodyOptions options;
  options.api = Api::kCompletions;
  options.token_ids = true;
  Conversation conversation(options);
  conversation.apply({.append = {{Role::kUser, 1, 5}}}, "");
  const auto json = parse_json(conversation.body(1));
  ASSERT_TRUE(json);
  EXPECT_EQ(json->find("prompt")->items().size(), 5U);
  EXPECT_EQ(conversation.planned_tokens(), 5);
}

}  // namespace
}  // namespace tandem::loadgen
