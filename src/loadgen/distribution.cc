#include "loadgen/distribution.h"

#include <algorithm>
#include <cmath>

namespace tandem::loadgen {

namespace {

// Cells grow by 0.2 % from a nanosecond up to some 10^9: about 20,700 at most.
constexpr double kSmallest = 1e-9;
constexpr double kLargest = 1e9;
const double kGrowth = std::log(1.002);

}  // namespace

double interpolated_percentile(std::span<const double> sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

int32_t Distribution::cell_of(double value) {
  if (value <= kSmallest) return 0;
  return 1 + static_cast<int32_t>(std::log(std::min(value, kLargest) / kSmallest) / kGrowth);
}

double Distribution::middle_of(int32_t cell) {
  return cell == 0 ? 0 : kSmallest * std::exp((cell - 0.5) * kGrowth);
}

void Distribution::add(double value) {
  if (!std::isfinite(value) || value < 0) value = 0;
  least_ = count_ == 0 ? value : std::min(least_, value);
  greatest_ = std::max(greatest_, value);
  ++count_;
  sum_ += value;
  const double off = value - mean_;
  mean_ += off / static_cast<double>(count_);
  squares_ += off * (value - mean_);
  ++cells_[cell_of(value)];
  if (count_ <= most_) {
    values_.push_back(value);
    sorted_ = false;
  } else if (!values_.empty()) {
    values_ = {};
  }
}

double Distribution::deviation() const {
  return count_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(count_));
}

double Distribution::percentile(double share) {
  if (count_ == 0) return 0;
  if (!is_exact()) return rough_percentile(share);
  if (!sorted_) std::ranges::sort(values_);
  sorted_ = true;
  return interpolated_percentile(values_, share);
}

double Distribution::rough_percentile(double share) const {
  if (count_ == 0) return 0;
  const double rank = share * static_cast<double>(count_ - 1);
  uint64_t seen = 0;
  for (const auto& [cell, count] : cells_) {
    seen += count;
    if (static_cast<double>(seen) > rank) return std::clamp(middle_of(cell), least_, greatest_);
  }
  return greatest_;
}

std::vector<std::pair<double, double>> Distribution::cumulative(size_t points) {
  std::vector<std::pair<double, double>> out;
  if (count_ == 0 || points < 2) return out;
  const size_t steps = std::min(points, count_ + 1) - 1;
  for (size_t i = 0; i <= steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(steps);
    out.emplace_back(percentile(share), share);
  }
  return out;
}

}  // namespace tandem::loadgen
