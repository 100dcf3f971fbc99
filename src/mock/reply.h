// What a mock engine answers: text that depends on the prompt alone, in the shapes of each API,
// whole or as a stream of events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mock/options.h"
#include "mock/request.h"
#include "mock/rooms.h"

namespace tandem::mock {

struct ReplyPlan {
  std::string id;
  int64_t created = 0;
  std::vector<PromptFacts> facts;  // one for each prompt
  int64_t cached = 0;              // what usage says
  bool wrong_usage = false;
  bool aborted = false;  // the engine gave the answer up
};

class Reply {
 public:
  Reply(const MockOptions& options, const MockRequest& request, ReplyPlan plan);

  size_t choices() const { return texts_.size(); }
  size_t steps() const;  // tokens of the longest choice

  JsonValue whole() const;
  // The events of a stream, each a whole frame.
  std::string opening() const;
  std::string step(size_t index) const;  // of every choice that has a token there
  std::string closing() const;           // finish reasons, usage as asked for
  bool ends_with_done() const {
    return request_.api != Api::kMessages && request_.api != Api::kResponses;
  }

 private:
  struct Text {
    std::vector<std::string> words;
    bool length = false;  // cut by max_tokens
  };
  JsonValue usage() const;
  JsonValue base(const char* object) const;
  JsonValue meta(size_t choice, size_t words) const;
  JsonValue responses_object(const char* status) const;
  std::string text_until(size_t choice, size_t words) const;
  const char* finish(size_t choice) const {
    return plan_.aborted ? "abort" : texts_[choice].length ? "length" : "stop";
  }

  const MockOptions& options_;
  const MockRequest& request_;
  ReplyPlan plan_;
  std::vector<Text> texts_;
};

std::string data_frame(const JsonValue& json);
std::string event_frame(const char* event, const JsonValue& json);

}  // namespace tandem::mock
