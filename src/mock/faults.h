// Faults: what a mock engine does wrong, and how often.
//
//   "die-mid-stream"          always
//   "stall*0.1"               one request in ten
//   "status=503#2"            the next two requests
//   "stall*0.5#10"            every second request on average, ten times at most
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::mock {

enum class FaultKind : uint8_t {
  kNone,
  kRefuse,          // the connection is reset instead of an answer
  kStatus,          // status=CODE
  kStall,           // no answer until the client leaves
  kSlow,            // every step takes ten times as long
  kDieAfterHead,    // a head, then a reset
  kDieMidStream,    // a reset after half of the answer
  kStallMidStream,  // half of the answer, then nothing
  kTruncate,        // the last frame is cut and the stream ends as if it were whole
  kNoDone,          // a stream without [DONE]
  kErrorFrame,      // an error object in the middle of a stream
  kGarbage,         // an answer that is not JSON
  kWrongUsage,      // usage that cannot be
  kAbort,           // an answer whose finish reason is "abort"
  kAbortTransfer,   // prefill computes, then gives its KV up
  kRestart,         // a new engine id, everything else lost, and the request with it
  kSlowRead,        // the request's body is read with long pauses
  kMuteHealth,      // the health route is not answered
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int status = 500;
  double probability = 1;
  int64_t left = -1;  // negative: no limit
};

// The names of all faults, for help texts.
std::string fault_names();
Result<Fault> parse_fault(std::string_view text);

class Faults {
 public:
  explicit Faults(uint64_t seed) : state_(seed * 2 + 1) {}
  void set(std::vector<Fault> faults) { faults_ = std::move(faults); }
  Fault next();  // for one request, other than those that are asked for by name
  bool happens(FaultKind kind);
  uint64_t random();

 private:
  bool happens(Fault& fault);
  std::vector<Fault> faults_;
  uint64_t state_;
};

}  // namespace tandem::mock
