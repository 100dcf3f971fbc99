#include "loadgen/arrivals.h"

#include <algorithm>

namespace tandem::loadgen {

Result<ArrivalProcess> parse_arrival_process(std::string_view name) {
  if (name == "constant") return ArrivalProcess::kConstant;
  if (name == "poisson") return ArrivalProcess::kPoisson;
  if (name == "gamma") return ArrivalProcess::kGamma;
  if (name == "burst") return ArrivalProcess::kBurst;
  return make_error(400, "invalid_option", "arrivals are constant, poisson, gamma or burst");
}

double Arrivals::next() {
  const double gap = 1 / options_.rate;
  switch (options_.process) {
    case ArrivalProcess::kConstant:
      at_ += gap;
      break;
    case ArrivalProcess::kPoisson:
      at_ += gap * random_.exponential();
      break;
    case ArrivalProcess::kGamma:
      at_ += gap * random_.gamma(options_.burstiness);
      break;
    case ArrivalProcess::kBurst:
      if (left_in_burst_ == 0) {
        left_in_burst_ = std::max(options_.burst_size, 1);
        at_ += gap * left_in_burst_ * random_.exponential();
      }
      --left_in_burst_;
      break;
  }
  return at_;
}

}  // namespace tandem::loadgen
