// What a client asked, in plain types that cross process borders. API dialects parse into these.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::protocol {

// Travels with a request through every process. Workers believe it only from an authenticated
// router.
struct RequestContext {
  std::string request_id;
  std::string tenant;                     // opaque name, empty: the default tenant
  std::string salt;                       // mixed into every ContentId of this request
  int32_t priority = 0;                   // higher runs earlier
  std::chrono::milliseconds deadline{0};  // time left when sent, 0: none
  std::string trace;                      // W3C traceparent, passed on
};

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0F;
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;  // 0: until the context is full
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// A rendezvous of two legs. `attempt` grows when a replacement worker dials again.
struct HandoffTicket {
  std::string handoff_id;  // 32 hex digits, minted by the router
  uint32_t attempt = 1;
  std::string prefill_address;  // decode side only: where to dial ("unix:/path")
};

enum class LegKind : uint8_t { kUnified, kPrefill, kDecode };

// What an engine runs: one sequence.
struct GenerateRequest {
  RequestContext context;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  LegKind leg = LegKind::kUnified;
  HandoffTicket handoff;  // meaningful unless kUnified
};

}  // namespace tandem::protocol
