#include "net/sse.h"

#include <vector>

#include <gtest/gtest.h>

namespace tandem::net {
namespace {

std::vector<std::string> data_of(std::string_view text, size_t piece, std::string& raw) {
  SseFramer framer;
  std::vector<std::string> found;
  raw.clear();
  for (size_t at = 0; at < text.size(); at += piece) {
    EXPECT_TRUE(framer.feed(text.substr(at, piece)));
    while (auto frame = framer.next()) {
      raw += frame->raw;
      if (frame->has_data) found.push_back(frame->data);
    }
  }
  raw += framer.take_rest();
  return found;
}

TEST(SseFramer, EverySplitGivesTheSameFramesAndTheSameBytes) {
  const std::string text =
      ": comment\n\ndata: one\n\ndata:two\r\ndata: 2b\r\n\r\nevent: x\rdata:  three\r\rid: "
      "1\nretry: 5\n\ndata\n\n\n\n"
      "data: {\"a\":\"\xE6\x97\xA5\"}\nother: y\n\ndataset: no\n\ndata: [DONE]\n\ndata: cut";
  const std::vector<std::string> expected = {
      "one", "two\n2b", " three", "", "{\"a\":\"\xE6\x97\xA5\"}", "[DONE]"};
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    std::string raw;
    EXPECT_EQ(data_of(text, piece, raw), expected) << "pieces of " << piece;
    EXPECT_EQ(raw, text);
  }
}

TEST(SseFramer, AFrameEndsWithoutWaitingForOneMoreByte) {
  for (const std::string ending : {"\n\n", "\r\n\r\n", "\r\r", "\n\r"}) {
    SseFramer framer;
    ASSERT_TRUE(framer.feed("data: x" + ending));
    auto frame = framer.next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->data, "x");
    EXPECT_FALSE(framer.next());
  }
  SseFramer split;
  ASSERT_TRUE(split.feed("data: x\r\n\r"));
  ASSERT_TRUE(split.next());
  ASSERT_TRUE(split.feed("\ndata: y\n\n"));
  auto second = split.next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->data, "y");
  EXPECT_EQ(second->raw, "\ndata: y\n\n");
}

TEST(SseFramer, DoneIsAWholeDataLine) {
  SseFramer framer;
  ASSERT_TRUE(framer.feed("data: [DONE] \n\ndata: x[DONE]\n\ndata:[DONE]\n\n: [DONE]\n\n"));
  EXPECT_FALSE(framer.next()->done());
  EXPECT_FALSE(framer.next()->done());
  EXPECT_TRUE(framer.next()->done());
  EXPECT_FALSE(framer.next()->done());
}

TEST(SseFramer, AnEndlessFrameIsAnError) {
  SseFramer framer(1000);
  const std::string piece(300, 'x');
  Status status;
  int feeds = 0;
  for (; feeds < 10 && status; ++feeds) {
    status = framer.feed(piece);
    EXPECT_FALSE(framer.next());
  }
  EXPECT_FALSE(status);
  EXPECT_EQ(status.error().code, "sse_frame_too_large");
  EXPECT_LE(framer.buffered(), 1300U);
}

TEST(SseFramer, LongStreamsDoNotGrowTheBuffer) {
  SseFramer framer(1000);
  for (int i = 0; i < 100000; ++i) {
    ASSERT_TRUE(framer.feed("data: abcdefgh\n\ndata: par"));
    ASSERT_TRUE(framer.next());
    ASSERT_TRUE(framer.feed("t\n\n"));
    ASSERT_TRUE(framer.next());
    EXPECT_FALSE(framer.next());
  }
  EXPECT_EQ(framer.buffered(), 0U);
}

}  // namespace
}  // namespace tandem::net
