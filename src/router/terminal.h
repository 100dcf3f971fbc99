// The one part of a reply that the router rewrites: usage, told truthfully, and the `tandem`
// object, taken out. Pure functions on JSON text; everything outside the two values stays byte for
// byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::router {

// What prefill said at the end of the handoff.
struct PrefillReport {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t kv_bytes = 0;
  int64_t blocks_sent = 0;
};
// {"object":"tandem.prefill","usage":{...},...}. Errors: 502 "bad_response".
Result<PrefillReport> parse_prefill_report(std::string_view json_text);

struct Terminal {
  std::string json;                                  // the edited object
  std::vector<std::vector<int32_t>> completion_ids;  // of every choice
  // What the client is told.
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

enum class CachedTruth {
  kAnswer,   // the answering worker computed the prompt: its number stands
  kPrefill,  // a pair: `prefill`'s numbers, or no cached number at all when they did not come
};

// `json_text` is an object with a top-level "tandem". `report` (null: none) replaces it.
Result<Terminal> rewrite_terminal(std::string_view json_text, CachedTruth truth,
                                  const std::optional<PrefillReport>& prefill,
                                  const JsonValue& report);

// True when the object has this top-level member. False for anything that is not an object.
bool has_member(std::string_view json_text, std::string_view key);

}  // namespace tandem::router
