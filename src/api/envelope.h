// The `tandem` object: what the router adds to a client's body for a worker (DESIGN §1). Believed
// only from an authenticated router; everyone else's is ignored.
//
//   {"leg": "prefill" | "decode" | "unified",
//    "context": {"request_id", "tenant", "salt", "priority", "deadline_ms", "trace"},
//    "handoff": {"id": 32 hex digits, "attempt": 1.., "prefill_address": "unix:/path"},
//    "prompt_token_ids": [...] or [[...], ...] (several prompts), "report_tokens": true}
//
// Every key is optional except that a prefill or decode leg needs a handoff, and a decode leg its
// address.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "protocol/request.h"

namespace tandem::api {

struct TandemEnvelope {
  protocol::LegKind leg = protocol::LegKind::kUnified;
  protocol::RequestContext context;
  protocol::HandoffTicket handoff;            // empty id: none
  std::vector<std::vector<int32_t>> prompts;  // empty: the worker renders the prompts itself
  bool report_tokens = false;  // the reply names the generated ids (and always has usage)
};

// Errors: 400 with the pointer of the field, starting at "/tandem".
Result<TandemEnvelope> parse_envelope(const JsonValue& json);
// Leaves out what has its default value.
JsonValue envelope_to_json(const TandemEnvelope& envelope);

}  // namespace tandem::api
