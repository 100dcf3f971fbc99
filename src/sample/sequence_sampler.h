// SequenceSampler: how one sequence samples, from its request's parameters. For each token:
// logprobs are read off the model's logits; what a grammar forbids is masked, and stop tokens are
// masked while fewer than min_tokens were generated; then logit_bias, then the penalties (vLLM's
// order), then the filters (sampler.h).
//
// What it keeps besides parameters (counts) follows from the sequence's tokens: built from the
// request anywhere, it gives the same tokens. One owner thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "protocol/request.h"
#include "protocol/scored_token.h"
#include "sample/penalties.h"
#include "sample/sampler.h"

namespace tandem::sample {

class SequenceSampler {
 public:
  SequenceSampler() = default;  // greedy, without anything
  SequenceSampler(const protocol::SamplingParams& params, std::span<const int32_t> stop_tokens,
                  uint64_t seed, int32_t choice, std::span<const int32_t> prompt);

  // These tokens stand at `position` and on: to be called with the rows of every pass before its
  // token is sampled. Free unless there are penalties.
  void note(int64_t position, std::span<const int32_t> tokens);
  // The token at `position`. Changes `logits`. Without bias, penalties and logprobs it allocates
  // nothing. `allowed`: the only tokens that may come, bit t % 64 of word t / 64; empty: all.
  // Errors: as sample().
  Result<protocol::ScoredToken> sample(std::span<float> logits, int64_t position, Scratch& scratch,
                                       std::span<const uint64_t> allowed = {}) const;

 private:
  Filters filters_{.temperature = 0};
  Penalties penalties_;
  std::optional<TokenCounts> counts_;
  std::vector<protocol::LogitBias> bias_;
  std::vector<int32_t> masked_;      // until `first_stop_`
  int64_t first_stop_ = 0;           // position of the first token that may stop
  std::optional<int32_t> logprobs_;  // so many alternatives
  uint64_t seed_ = 0;
  uint32_t choice_ = 0;
};

}  // namespace tandem::sample
