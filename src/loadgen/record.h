// RequestRecord: what was measured of one request. Times in seconds since the run's beginning.
//
// Definitions are those of the benchmark clients of vLLM and SGLang:
//   TTFT  request written to first piece of the answer (a piece carries text, reasoning or a part
//         of a tool call; the opening role chunk, which vLLM's takes for the first, does not
//         count);
//   ITL   between two pieces of one answer;
//   E2E   request written to last piece;
//   TPOT  (E2E - TTFT) / (output tokens - 1), of answers with at least two tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::loadgen {

enum class ErrorKind : uint8_t {
  kNone,
  kConnect,     // refused, failed, timed out, TLS
  kStatus,      // an HTTP status that is not 200
  kTimeout,     // no head, or no byte for too long
  kBroken,      // the connection ended before the answer did
  kStream,      // an error object inside the stream
  kBad,         // what came is not the API's form
  kEmpty,       // a whole answer without one piece
  kUnfinished,  // cancelled at the run's end: no error of the server
};
inline constexpr size_t kErrorKinds = 9;
std::string_view error_kind_name(ErrorKind kind);

struct RequestRecord {
  uint64_t id = 0;
  uint64_t session = 0;
  int32_t turn = 0;
  double planned = 0;  // when the open loop wanted it sent; equal to `sent` in a closed loop
  double sent = 0;
  double first = 0;  // of the first piece; meaningless without pieces
  double last = 0;   // of the last piece
  double ended = 0;  // when the answer, or the error, was complete
  int64_t pieces = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  bool counted_by_server = false;  // else pieces stand for output tokens, the plan for input
  ErrorKind error = ErrorKind::kNone;
  int status = 0;

  double ttft() const { return first - sent; }
  double e2e() const { return last - sent; }
  double tpot() const {  // zero for answers of one token
    return output_tokens < 2 ? 0 : (last - first) / static_cast<double>(output_tokens - 1);
  }
};

}  // namespace tandem::loadgen
