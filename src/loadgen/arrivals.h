// Arrivals: when the requests of an open loop are sent, whatever the server does.
//
// Single-threaded; the same seed gives the same times.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "loadgen/random.h"

namespace tandem::loadgen {

enum class ArrivalProcess : uint8_t {
  kConstant,  // evenly spaced
  kPoisson,   // independent users: exponential gaps
  kGamma,     // gaps of a gamma distribution: `burstiness` below 1 is burstier than Poisson
  kBurst,     // `burst_size` at the same moment; the moments are Poisson
};
Result<ArrivalProcess> parse_arrival_process(std::string_view name);

struct ArrivalOptions {
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double rate = 1;  // requests a second, above zero
  double burstiness = 1;
  int32_t burst_size = 8;
  uint64_t seed = 1;
};

class Arrivals {
 public:
  explicit Arrivals(const ArrivalOptions& options) : options_(options), random_(options.seed) {}
  // Seconds since the beginning of the next arrival; never decreases.
  double next();

 private:
  ArrivalOptions options_;
  Random random_;
  double at_ = 0;
  int32_t left_in_burst_ = 0;
};

}  // namespace tandem::loadgen
