#include "numerics/error.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace tandem::numerics {

ErrorStats compare(std::span<const float> actual, std::span<const float> expected) {
  assert(actual.size() == expected.size());
  ErrorStats stats;
  double squares = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i];
    const double e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) {
      if (!(a == e || (std::isnan(a) && std::isnan(e)))) ++stats.non_finite;
      continue;
    }
    const double difference = std::abs(a - e);
    squares += difference * difference;
    stats.max_reference = std::max(stats.max_reference, std::abs(e));
    if (difference > stats.max_abs) {
      stats.max_abs = difference;
      stats.worst_index = i;
    }
  }
  if (!actual.empty()) stats.rms = std::sqrt(squares / static_cast<double>(actual.size()));
  return stats;
}

double log_sum_exp(std::span<const float> values) {
  if (values.empty()) return -std::numeric_limits<double>::infinity();
  const double peak = values[argmax(values)];
  if (!std::isfinite(peak)) return peak;
  double sum = 0;
  for (const float value : values) sum += std::exp(static_cast<double>(value) - peak);
  return peak + std::log(sum);
}

double kl_divergence(std::span<const float> reference_logits,
                     std::span<const float> actual_logits) {
  assert(reference_logits.size() == actual_logits.size());
  const double reference_norm = log_sum_exp(reference_logits);
  const double actual_norm = log_sum_exp(actual_logits);
  double sum = 0;
  for (size_t i = 0; i < reference_logits.size(); ++i) {
    const double log_p = reference_logits[i] - reference_norm;
    const double p = std::exp(log_p);
    if (p > 0) sum += p * (log_p - (actual_logits[i] - actual_norm));
  }
  return sum;
}

size_t argmax(std::span<const float> values) {
  size_t best = 0;
  float peak = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > peak) {
      peak = values[i];
      best = i;
    }
  }
  return best;
}

}  // namespace tandem::numerics
