// Logits to tokens. A pure function of (logits, parameters, seed, choice, position): the same
// request gives the same text whatever else is in the batch, on every worker, after any move.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace tandem::sample {

// Filters apply in the order temperature, top_k, top_p, each over what the one before left.
struct Filters {
  float temperature = 1.0F;  // <= 0: greedy
  int32_t top_k = 0;         // <= 0: off
  float top_p = 1.0F;  // >= 1: off; the smallest set of most likely tokens with at least this mass
};

struct Sampled {
  int32_t token = -1;
  float logprob = 0.0F;  // natural logarithm, under the unfiltered distribution at temperature 1
};

// Greedy: the lowest id among the largest logits. Sampling: inverse transform over the kept tokens
// with the one random number of (seed, choice, position). `logits` is only read. Minus infinity
// forbids a token. Errors: 500 "bad_logits" when a logit is NaN or plus infinity, or none is
// finite. No allocation larger than the kept set; any thread.
Result<Sampled> sample(std::span<const float> logits, const Filters& filters, uint64_t seed,
                       uint32_t choice, int64_t position);

// Uniform in [0, 1), 53 bits, from the counter-based generator Philox4x32-10 (J. Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC'11): key = seed, counter = (position, choice,
// stream).
double uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t stream = 0);

// The generator itself, for its test vectors.
struct Philox {
  uint32_t word[4];
};
Philox philox4x32_10(const uint32_t (&counter)[4], const uint32_t (&key)[2]);

}  // namespace tandem::sample
