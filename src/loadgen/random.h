// Random: numbers that are the same for the same seed on every machine and library, so that a
// workload can be repeated from its seed alone. Not for secrets.
#pragma once

#include <cmath>
#include <cstdint>

#include "numerics/mix.h"

namespace tandem::loadgen {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed ^ 0x9e3779b97f4a7c15ULL)) {}

  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  // In (0, 1): never either end, so that a logarithm of it is finite.
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  // In [0, bound); bound is at least 1.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>(uniform() * static_cast<double>(bound));
  }
  double exponential() { return -std::log(uniform()); }  // mean 1
  double normal() {                                      // Box and Muller, one of the two
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(6.283185307179586 * uniform());
  }
  // Of shape `shape` and mean 1 (Marsaglia and Tsang).
  double gamma(double shape) {
    const double boost = shape < 1 ? std::pow(uniform(), 1 / shape) : 1;
    const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal();
      const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
      if (v <= 0) continue;
      if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
        return d * v * boost / shape;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace tandem::loadgen
