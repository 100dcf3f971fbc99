// What a prefill leg's whole reply gives: what decode needs, and the truth about the prompt.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "router/connectors/connector.h"
#include "router/usage/prompt_truth.h"

namespace tandem::router {

struct Harvest {
  std::string params;            // $HARVESTED: JSON text, byte for byte; empty: none (decode
                                 // computes the prompt itself)
  std::string prompt_token_ids;  // $PROMPT_TOKEN_IDS: JSON text
  std::string usage;             // $PREFILL_USAGE: JSON text of the reply's usage
  std::string finish_reason;     // of the first choice
  // The prompt's context ended the generation already: this reply is the client's answer, and
  // there is no decode leg.
  bool is_answer = false;
  PromptTruth truth;
  int64_t kv_bytes = 0;  // Tandem's
};

// Errors: 502 "bad_response" when the reply is no JSON.
Result<Harvest> harvest(const Connector& connector, Api api, std::string_view reply);

}  // namespace tandem::router
