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

struct TokenChance {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm, of the model's own distribution at temperature 1
  std::string bytes;  // what the token stands for, possibly part of a character
};
struct TokenLogprobs {
  TokenChance chosen;
  std::vector<TokenChance> top;  // the likeliest, most likely first
};

// What the model thinks of the prompt: before any text, when asked for. The first token has no
// predecessor and so no logprob.
struct PromptEvent {
  std::vector<int32_t> tokens;
  std::vector<std::optional<TokenLogprobs>> logprobs;  // one for each token
};

// Where in a text the spelling of a kept token begins (SamplingParams::kept_tokens).
struct TokenMark {
  uint32_t offset = 0;  // in bytes
  int32_t token = 0;
  bool operator==(const TokenMark&) const = default;
};

// Text that may be sent: whole characters, never part of a stop string. `tokens` are the ids behind
// it (may be empty when text was held back earlier). Every generated token comes in
// exactly one event (a stop token only with include_stop), those whose text was cut off (a stop
// string, an unfinished character at the end) in a last one whose text may be empty.
struct TextEvent {
  std::string text;
  std::vector<int32_t> tokens;
  int32_t choice = 0;
  std::vector<TokenLogprobs> logprobs = {};  // one for each of `tokens` when asked for, else empty
  std::vector<TokenMark> marks = {};         // ascending
};

// Ends one choice; the request ends with the last of them.
struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  // the stop string that matched
  std::optional<int32_t> stop_token = {};  // the stop token that was sampled, an end of turn too
  int32_t choice = 0;
  Usage usage;  // of this choice alone, except that every choice has the same prompt
  // Generated for choices that nobody gets (best_of above n): with the request's last finish.
  int32_t discarded_tokens = 0;
  // The generated ids whose KV was computed, for the router's prefix index: all but a stop token
  // and, without one, the last.
  std::vector<int32_t> completion_tokens;
};

// Ends the request with all its choices; nothing follows.
struct ErrorEvent {
  Error error;
};

using TokenEvent = std::variant<PromptEvent, TextEvent, FinishEvent, ErrorEvent>;

}  // namespace tandem::protocol
