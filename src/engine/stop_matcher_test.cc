#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

// Cuts `text` in pieces of every size and at every place: the result must never depend on it.
void expect_all_splits(const std::vector<std::string>& stops, const std::string& text,
                       const std::string& want, bool want_match) {
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t size = 1; size <= 4; ++size) {
      StopMatcher matcher(stops);
      std::string got = matcher.push(std::string_view(text).substr(0, first));
      for (size_t at = first; at < text.size(); at += size)
        got += matcher.push(std::string_view(text).substr(at, size));
      EXPECT_EQ(matcher.matched().has_value(), want_match);
      got += matcher.finish();
      EXPECT_EQ(got, want) << first << " " << size;
    }
  }
}

TEST(StopMatcher, SendsNothingOfAStopString) {
  expect_all_splits({"own fox"}, "The brown own fox jumps", "The brown ", true);
  expect_all_splits({"aab"}, "xaaab y", "xa", true);
  expect_all_splits({"\n\n", "END"}, "one\ntwo\nENDthree\n\n", "one\ntwo\n", true);
}

TEST(StopMatcher, ReturnsHeldTextAtTheEnd) {
  expect_all_splits({"own fox"}, "The own fo", "The own fo", false);
  expect_all_splits({}, "anything", "anything", false);
}

TEST(StopMatcher, TheEarliestBeginningWins) {
  expect_all_splits({"cd", "bcd"}, "abcde", "a", true);
}

}  // namespace
}  // namespace tandem::engine
