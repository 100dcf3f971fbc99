// Log probabilities of the model's own distribution: of the logits as the model gave them, at
// temperature 1, before any bias, penalty or filter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "protocol/scored_token.h"

namespace tandem::sample {

class Distribution {
 public:
  // Keeps a view of `logits`. Errors: 500 "bad_logits" as sample().
  static Result<Distribution> of(std::span<const float> logits);

  // Always finite: at least the lowest float.
  float logprob(int32_t token) const;
  // The `count` likeliest tokens, most likely first, equal ones by id; tokens of probability zero
  // are left out. One pass over the logits.
  void top(int32_t count, std::vector<protocol::Chance>& out) const;

 private:
  std::span<const float> logits_;
  float largest_ = 0;
  double log_sum_ = 0;
};

}  // namespace tandem::sample
