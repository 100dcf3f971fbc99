// Logits to one token. A pure function of (logits, filters, seed, choice, position): the same
// request gives the same text whatever else is in the batch, on every worker, after any move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "protocol/scored_token.h"
#include "sample/random.h"

namespace tandem::sample {

// In the order of Hugging Face's generate(): temperature, top_k, top_p, min_p, typical_p, each over
// what the one before left, renormalized. (vLLM applies min_p before top_k and top_p and has no
// typical_p. min_p compares with the likeliest token, which every filter before it keeps, so the
// two orders differ only in the mass that top_p counts.)
struct Filters {
  float temperature = 1.0F;  // <= 0: greedy
  int32_t top_k = 0;         // <= 0: off
  float top_p = 1.0F;  // >= 1: off; the smallest set of most likely tokens with at least this mass
  float min_p = 0.0F;  // <= 0: off; at least this likely relative to the likeliest
  // >= 1: off; the smallest set with at least this mass of tokens whose information content is
  // nearest to the entropy
  float typical_p = 1.0F;
};

// Working memory, reused from call to call; one owner at a time.
struct Candidate {
  float logit;
  int32_t token;
};
struct Scratch {
  std::vector<Candidate> kept, border, other;
  std::vector<float> own;  // the model's logits, before anything changed them
};

// Greedy: the lowest id among the largest logits. Sampling: inverse transform over the kept tokens,
// in order of id, with the one random number of (seed, choice, position). Minus infinity forbids a
// token. Errors: 500 "bad_logits" when a logit is NaN or plus infinity, or none is finite. Sorts
// nothing but the tokens at the edge of a filter.
Result<int32_t> sample(std::span<const float> logits, const Filters& filters, uint64_t seed,
                       uint32_t choice, int64_t position, Scratch& scratch);

// What sample() draws from: each token that the filters keep, ascending, with the natural logarithm
// of its probability. Errors as sample.
Result<std::vector<protocol::Chance>> kept_tokens(std::span<const float> logits,
                                                  const Filters& filters);

}  // namespace tandem::sample
