// What the worker that computed a prompt said about it: the counts that the client is to see,
// whatever the answering worker counts (a decode worker takes transferred KV for a cache hit), and
// the prompt's logprobs, which only it has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_scan.h"
#include "base/result.h"
#include "router/usage/api.h"

namespace tandem::router {

struct PromptCounts {
  std::optional<int64_t> prompt;         // tokens, under the name of the reply's own API
  std::optional<int64_t> cached;         // nothing: it did not say (which is not zero)
  std::optional<int64_t> cache_written;  // Anthropic's cache_creation_input_tokens
};

struct PromptTruth {
  PromptCounts counts;  // of the whole request
  // SGLang's /generate counts for each prompt (and choice) of a batch.
  std::vector<PromptCounts> parts;
  // JSON arrays, one for each part or choice: SGLang's input_token_logprobs and input_top_logprobs.
  // Empty: none.
  std::vector<std::string> input_logprobs;
  std::vector<std::string> input_top_logprobs;
  // Of completions that echo their prompt: each choice's `logprobs` object, and how many of its
  // entries at the end belong to what prefill itself generated.
  std::vector<std::string> choice_logprobs;
  int64_t generated = 0;
};

// Reads a prefill worker's whole reply of `api`. A reply without counts gives an empty truth.
// Errors: 502 "bad_response" when it is no JSON, or its counts are impossible.
Result<PromptTruth> read_prompt_truth(Api api, std::string_view reply);
// The two halves of it, for who needs the scan besides.
Result<JsonScan> scan_prefill_reply(std::string_view reply);
PromptTruth read_prompt_truth(Api api, std::string_view reply, const JsonScan& scan);

// A Tandem prefill worker's report: {"object":"tandem.prefill","usage":{...},...}. Errors: 502
// "bad_response".
struct TandemPrefillReport {
  PromptTruth truth;
  int64_t kv_bytes = 0;
  int64_t blocks_sent = 0;
};
Result<TandemPrefillReport> read_prefill_report(std::string_view reply);

}  // namespace tandem::router
