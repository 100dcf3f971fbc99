// How far a result is from its reference. Shared by tests, benches and eval, so that
// "close enough" always means the same thing.
#pragma once

#include <cstddef>
#include <span>

namespace tandem::numerics {

struct ErrorStats {
  double max_abs = 0;        // largest |actual - expected|
  double max_reference = 0;  // largest |expected|
  double rms = 0;            // root mean square of the difference
  size_t worst_index = 0;
  size_t non_finite = 0;  // entries where either side is not finite and the two differ
  // Largest difference over largest reference: the measure logits are judged by.
  double max_relative_to_peak() const {
    return max_reference > 0 ? max_abs / max_reference : max_abs;
  }
};

// Spans of equal length.
ErrorStats compare(std::span<const float> actual, std::span<const float> expected);

// log(sum(exp(values))) in double. Minus infinity when empty.
double log_sum_exp(std::span<const float> values);

// KL(reference || actual) of the softmax distributions, in nats; at least 0 up to rounding.
double kl_divergence(std::span<const float> reference_logits, std::span<const float> actual_logits);

// Index of the largest value, the lowest on ties; 0 when empty. NaN never wins.
size_t argmax(std::span<const float> values);

}  // namespace tandem::numerics
