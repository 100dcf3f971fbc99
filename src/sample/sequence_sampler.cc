#include "sample/sequence_sampler.h"

#include <algorithm>
#include <limits>

#include "sample/logprobs.h"

namespace tandem::sample {

SequenceSampler::SequenceSampler(const protocol::SamplingParams& params,
                                 std::span<const int32_t> stop_tokens, uint64_t seed,
                                 int32_t choice, std::span<const int32_t> prompt)
    : filters_{.temperature = params.temperature,
               .top_k = params.top_k,
               .top_p = params.top_p,
               .min_p = params.min_p,
               .typical_p = params.typical_p},
      penalties_{.presence = params.presence_penalty,
                 .frequency = params.frequency_penalty,
                 .repetition = params.repetition_penalty},
      bias_(params.logit_bias),
      first_stop_(static_cast<int64_t>(prompt.size()) + params.min_tokens),
      logprobs_(params.logprobs),
      seed_(seed),
      choice_(static_cast<uint32_t>(choice)) {
  if (penalties_.any()) counts_.emplace(prompt, penalties_.repetition != 1);
  if (params.min_tokens > 0) masked_.assign(stop_tokens.begin(), stop_tokens.end());
  // The choices are ranked by it.
  if (params.best_of > params.n && !logprobs_) logprobs_ = 0;
}

void SequenceSampler::note(int64_t position, std::span<const int32_t> tokens) {
  if (counts_) counts_->set(position, tokens);
}

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void forbid_others(std::span<float> logits, std::span<const uint64_t> allowed) {
  for (size_t at = 0; at < logits.size(); at += 64) {
    const size_t end = std::min(at + 64, logits.size());
    const uint64_t word = at / 64 < allowed.size() ? allowed[at / 64] : 0;
    if (word == ~uint64_t{0}) continue;
    for (size_t i = at; i < end; ++i) {
      if (((word >> (i - at)) & 1) == 0) logits[i] = kForbidden;
    }
  }
}

}  // namespace

Result<protocol::ScoredToken> SequenceSampler::sample(std::span<float> logits, int64_t position,
                                                      Scratch& scratch,
                                                      std::span<const uint64_t> allowed) const {
  protocol::ScoredToken out;
  const bool masks = position < first_stop_ && !masked_.empty();
  const bool changes = masks || counts_ || !bias_.empty() || !allowed.empty();
  if (!changes) {
    TANDEM_TRY(token, sample::sample(logits, filters_, seed_, choice_, position, scratch));
    out.token = token;
    if (logprobs_) {
      TANDEM_TRY(distribution, Distribution::of(logits));
      out.logprob = distribution.logprob(token);
      distribution.top(*logprobs_, out.top);
    }
    return out;
  }
  std::optional<Distribution> own;
  if (logprobs_) {
    scratch.own.assign(logits.begin(), logits.end());
    TANDEM_TRY(distribution, Distribution::of(scratch.own));
    own = distribution;
    own->top(*logprobs_, out.top);
  }
  if (!allowed.empty()) forbid_others(logits, allowed);
  const auto inside = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (masks) {
    for (const int32_t token : masked_) {
      if (inside(token)) logits[static_cast<size_t>(token)] = kForbidden;
    }
  }
  for (const protocol::LogitBias& bias : bias_) {
    if (inside(bias.token)) logits[static_cast<size_t>(bias.token)] += bias.bias;
  }
  if (counts_) penalize(logits, *counts_, penalties_);
  TANDEM_TRY(token, sample::sample(logits, filters_, seed_, choice_, position, scratch));
  out.token = token;
  if (own) out.logprob = own->logprob(token);
  return out;
}

}  // namespace tandem::sample
