// Tokens with what the model thought of them, as ids and numbers: what travels between threads and
// workers. TokenLogprobs (token_event.h) adds the bytes for clients.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::protocol {

struct Chance {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm, of the model's own distribution at temperature 1; finite
  bool operator==(const Chance&) const = default;
};

struct ScoredToken {
  int32_t token = 0;
  float logprob = 0;             // 0 unless asked for
  std::vector<Chance> top = {};  // the likeliest tokens, most likely first; as many as asked for
  bool operator==(const ScoredToken&) const = default;
};

}  // namespace tandem::protocol
