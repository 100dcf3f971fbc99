#include "protocol/request.h"

namespace tandem::protocol {

Status check_prompt_chances(int64_t tokens, const SamplingParams& params) {
  if (!params.prompt_logprobs) return {};
  const int64_t each = int64_t{*params.prompt_logprobs + 1} * params.n;
  if (tokens <= kMaxPromptChances / each) return {};
  return invalid_request(
      "The prompt is too long for that many logprobs and choices: an answer may have " +
          std::to_string(kMaxPromptChances) + " logprobs of its prompts.",
      "/logprobs");
}

}  // namespace tandem::protocol
