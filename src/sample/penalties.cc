#include "sample/penalties.h"

#include <algorithm>

namespace tandem::sample {

TokenCounts::TokenCounts(std::span<const int32_t> prompt, bool count_prompt)
    : prompt_size_(static_cast<int64_t>(prompt.size())) {
  if (!count_prompt) return;
  for (const int32_t token : prompt) entry(token).in_prompt = true;
}

TokenCounts::Entry& TokenCounts::entry(int32_t token) {
  const auto [at, added] = index_.try_emplace(token, static_cast<uint32_t>(entries_.size()));
  if (added) entries_.push_back({.token = token});
  return entries_[at->second];
}

void TokenCounts::set(int64_t position, std::span<const int32_t> tokens) {
  const int64_t skipped =
      std::clamp<int64_t>(prompt_size_ - position, 0, static_cast<int64_t>(tokens.size()));
  const auto at = static_cast<size_t>(std::max<int64_t>(position + skipped - prompt_size_, 0));
  tokens = tokens.subspan(static_cast<size_t>(skipped));
  while (generated_.size() > at) {
    --entry(generated_.back()).generated;
    generated_.pop_back();
  }
  for (const int32_t token : tokens) {
    ++entry(token).generated;
    generated_.push_back(token);
  }
}

void penalize(std::span<float> logits, const TokenCounts& counts, const Penalties& penalties) {
  for (const TokenCounts::Entry& entry : counts.entries()) {
    if (entry.token < 0 || static_cast<size_t>(entry.token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(entry.token)];
    if (penalties.repetition != 1 && (entry.in_prompt || entry.generated > 0))
      logit = logit > 0 ? logit / penalties.repetition : logit * penalties.repetition;
    if (entry.generated == 0) continue;
    logit -= penalties.frequency * static_cast<float>(entry.generated);
    logit -= penalties.presence;
  }
}

}  // namespace tandem::sample
