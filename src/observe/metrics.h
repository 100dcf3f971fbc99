// Metrics: counters, gauges and histograms, rendered in Prometheus' text form.
// Names: where a series means what vLLM's `vllm:x` means it is called `tandem_x` (README.md lists
// them).
//
// Handles are one pointer, copyable, valid as long as their Metrics. Adding to one is lock-free
// (histograms take a short lock). Making one takes a lock and a map look-up: make it once and keep
// it. Thread-safe.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tandem::observe {

using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  Counter() = default;  // detached: adds go nowhere
  void add(double amount = 1);
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(void* counter) : counter_(counter) {}
  void* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void set(double value);
  void add(double amount);
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(void* gauge) : gauge_(gauge) {}
  void* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(void* histogram) : histogram_(histogram) {}
  void* histogram_ = nullptr;
};

// Bucket edges in seconds, from 1 ms to 10 min.
std::vector<double> latency_buckets();

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same series.
  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help,
                      const std::vector<double>& buckets, const Labels& labels = {});
  // The text exposition; content type kMetricsContentType.
  std::string render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace tandem::observe
