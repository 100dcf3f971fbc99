// Softmax weights without a math library: the same bits on every machine. Inside sample/ only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/result.h"

namespace tandem::sample {

struct Scan {
  float largest;
  int32_t token;
};

// The first of the largest logits; 500 "bad_logits" when something is not a number a softmax can
// take. Minus infinity is one: it forbids a token.
inline Result<Scan> scan(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  int32_t token = -1;
  bool bad = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    bad |= !(logit <= std::numeric_limits<float>::max());  // NaN and +infinity
    if (logit > largest) {
      largest = logit;
      token = static_cast<int32_t>(i);
    }
  }
  if (bad || token < 0) {
    return make_error(500, "bad_logits", "the model produced logits that are not finite numbers");
  }
  return Scan{largest, token};
}

// exp(x) for x <= 0, relative error below 3e-7 (below -87: zero). Cody-Waite reduction by ln 2,
// then the Taylor polynomial of degree 6 on |r| <= ln(2)/2 (its remainder is 2e-7 there at most).
// Vectorizes.
inline float exponential(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * 1.44269504F - 0.5F;
  const auto n = static_cast<int32_t>(shifted);  // truncation of a negative number: rounds half up
  const auto whole = static_cast<float>(n);
  const float r = (clamped - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const float value = p * std::bit_cast<float>((n + 127) << 23);
  return x < -87.0F ? 0.0F : value;
}

// The weights of a softmax at one temperature, relative to the largest.
struct Weights {
  float largest;
  float scale;
  float below(float logit) const { return (largest - logit) * scale; }  // >= 0, in nats
  double of(float logit) const { return static_cast<double>(exponential(-below(logit))); }

  // In a fixed order: eight partial sums, combined in order.
  double sum(std::span<const float> logits) const {
    double partial[8] = {};
    size_t i = 0;
    for (; i + 8 <= logits.size(); i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) partial[lane] += of(logits[i + lane]);
    }
    for (size_t lane = 0; i < logits.size(); ++i, ++lane) partial[lane] += of(logits[i]);
    double total = 0;
    for (const double part : partial) total += part;
    return total;
  }
};

}  // namespace tandem::sample
