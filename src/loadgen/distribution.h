// Distribution: the values of one measure (a latency in seconds, a count), and their percentiles,
// in bounded memory.
//
// Up to kExactValues values are kept as they are, and percentiles are exact: linear interpolation
// between the two nearest ranks, as numpy.percentile does by default and so the benchmark clients
// of vLLM and SGLang. Beyond that a histogram answers whose cells are 0.2 % wide; is_exact() says
// which.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tandem::loadgen {

// `sorted` ascending and not empty; share in [0, 1].
double interpolated_percentile(std::span<const double> sorted, double share);

class Distribution {
 public:
  static constexpr size_t kExactValues = size_t{1} << 20;

  explicit Distribution(size_t exact_values = kExactValues) : most_(exact_values) {}

  void add(double value);  // negative and not finite ones count as zero
  size_t count() const { return count_; }
  bool is_exact() const { return count_ <= most_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  double deviation() const;  // of the population, as numpy.std
  double least() const { return count_ == 0 ? 0 : least_; }
  double most() const { return count_ == 0 ? 0 : greatest_; }
  double sum() const { return sum_; }
  // Zero without values. Sorts on the first call after an add.
  double percentile(double share);
  // From the histogram alone: cheap at any time, within 0.2 %.
  double rough_percentile(double share) const;
  // At most `points` (value, share of values at or below), ascending; for plots.
  std::vector<std::pair<double, double>> cumulative(size_t points);

 private:
  static int32_t cell_of(double value);
  static double middle_of(int32_t cell);

  size_t most_;
  size_t count_ = 0;
  double sum_ = 0;
  double mean_ = 0;  // running, for the deviation (Welford)
  double squares_ = 0;
  double least_ = 0;
  double greatest_ = 0;
  bool sorted_ = true;
  std::vector<double> values_;
  std::map<int32_t, uint64_t> cells_;  // at most some thousands: see cell_of
};

}  // namespace tandem::loadgen
