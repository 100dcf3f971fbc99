#include "sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sample/softmax.h"

namespace tandem::sample {

Result<Distribution> Distribution::of(std::span<const float> logits) {
  TANDEM_TRY(top, scan(logits));
  Distribution out;
  out.logits_ = logits;
  out.largest_ = top.largest;
  out.log_sum_ = std::log(Weights{top.largest, 1.0F}.sum(logits));
  return out;
}

float Distribution::logprob(int32_t token) const {
  const double below = static_cast<double>(logits_[static_cast<size_t>(token)]) -
                       static_cast<double>(largest_) - log_sum_;
  constexpr auto kLowest = static_cast<double>(std::numeric_limits<float>::lowest());
  return static_cast<float>(std::max(below, kLowest));
}

void Distribution::top(int32_t count, std::vector<protocol::Chance>& out) const {
  out.clear();
  if (count <= 0) return;
  const auto most = static_cast<size_t>(count);
  out.reserve(most + 1);
  // `out` holds logits until the end; equal ones came earlier and stay before.
  float worst = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits_.size(); ++i) {
    const float logit = logits_[i];
    if (!(logit > worst)) continue;
    const auto place =
        std::ranges::upper_bound(out, logit, std::greater<>(), &protocol::Chance::logprob);
    out.insert(place, protocol::Chance{static_cast<int32_t>(i), logit});
    if (out.size() > most) out.pop_back();
    if (out.size() == most) worst = out.back().logprob;
  }
  for (protocol::Chance& chance : out) chance.logprob = logprob(chance.token);
}

}  // namespace tandem::sample
