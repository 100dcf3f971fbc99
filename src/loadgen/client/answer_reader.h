// AnswerReader: what a streamed answer of /v1/chat/completions or /v1/completions tells about
// itself, read as its bytes arrive. Reads no clock: the caller says when bytes came.
//
// Bytes are a stranger's: anything may come, in any pieces. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "loadgen/record.h"
#include "net/sse.h"

namespace tandem::loadgen {

class AnswerReader {
 public:
  // Keeps the answer's text, up to a bound, when asked to.
  explicit AnswerReader(bool keep_text) : framer_(kMostFrameBytes), keep_text_(keep_text) {}

  // False: nothing more is wanted (an error came, or a form that is not the API's).
  bool feed(std::string_view bytes, double now);
  // The stream is at its end; puts times, counts and the kind of error into `record`. Token counts
  // stay as they are where the server gave none (counted_by_server is false then, and output_tokens
  // becomes the pieces).
  void finish(RequestRecord& record);

  int64_t pieces() const { return pieces_; }
  int64_t take_new_pieces();                                 // since the last call
  const std::vector<double>& gaps() const { return gaps_; }  // seconds between pieces
  const std::string& text() const { return text_; }
  const std::string& error_text() const { return error_text_; }

 private:
  static constexpr size_t kMostFrameBytes = size_t{1} << 20;
  static constexpr size_t kMostGaps = size_t{1} << 20;
  static constexpr size_t kMostText = size_t{4} << 20;

  void take(const JsonValue& json, double now);
  void take_usage(const JsonValue& usage);
  void piece(std::string_view text, double now);

  net::SseFramer framer_;
  bool keep_text_;
  std::vector<double> gaps_;
  std::string text_;
  std::string error_text_;
  ErrorKind error_ = ErrorKind::kNone;
  bool done_ = false;      // [DONE] came
  bool finished_ = false;  // a finish reason came
  int64_t pieces_ = 0;
  int64_t told_ = 0;
  double first_ = 0;
  double last_ = 0;
  int64_t prompt_tokens_ = -1;
  int64_t completion_tokens_ = -1;
  int64_t cached_tokens_ = 0;
};

}  // namespace tandem::loadgen
