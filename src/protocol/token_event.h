// Token events: the one ordered stream a sequence emits; every API dialect only renders it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tandem::protocol {

enum class FinishReason : uint8_t { kStop, kLength, kAborted };

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose KV was reused, not computed
  int32_t completion_tokens = 0;
};

// Text that may be sent: whole characters, never part of a stop string. `tokens` are the ids behind
// it (may be empty when text was held back earlier).
struct TextEvent {
  std::string text;
  std::vector<int32_t> tokens;
};

struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  // the stop string that matched
  Usage usage;
  std::vector<int32_t> completion_tokens;  // every generated id, for the router's prefix index
};

// Ends the sequence; nothing follows.
struct ErrorEvent {
  Error error;
};

using TokenEvent = std::variant<TextEvent, FinishEvent, ErrorEvent>;

}  // namespace tandem::protocol
