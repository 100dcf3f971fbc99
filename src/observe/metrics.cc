#include "observe/metrics.h"

#include <mutex>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "observe/log.h"

namespace tandem::observe {

void Counter::add(double amount) {
  if (counter_ != nullptr) static_cast<prometheus::Counter*>(counter_)->Increment(amount);
}

double Counter::value() const {
  return counter_ == nullptr ? 0 : static_cast<prometheus::Counter*>(counter_)->Value();
}

void Gauge::set(double value) {
  if (gauge_ != nullptr) static_cast<prometheus::Gauge*>(gauge_)->Set(value);
}

void Gauge::add(double amount) {
  if (gauge_ != nullptr) static_cast<prometheus::Gauge*>(gauge_)->Increment(amount);
}

double Gauge::value() const {
  return gauge_ == nullptr ? 0 : static_cast<prometheus::Gauge*>(gauge_)->Value();
}

void Histogram::observe(double value) {
  if (histogram_ != nullptr) static_cast<prometheus::Histogram*>(histogram_)->Observe(value);
}

std::vector<double> latency_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,     2.5,    5,     10,   30,    60,   120, 300,  600};
}

struct Metrics::Impl {
  mutable std::mutex lock;  // family look-ups; the registry locks itself for collection
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

// A name that Prometheus refuses, or one used for two kinds, is a mistake in the program: it is
// logged and the handle is detached, so that a metric can never take a request down.
Counter Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard guard(impl_->lock);
  try {
    return Counter(
        &prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry).Add(labels));
  } catch (const std::exception& error) {
    log_error("metric {}: {}", name, error.what());
    return {};
  }
}

Gauge Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard guard(impl_->lock);
  try {
    return Gauge(
        &prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(labels));
  } catch (const std::exception& error) {
    log_error("metric {}: {}", name, error.what());
    return {};
  }
}

Histogram Metrics::histogram(const std::string& name, const std::string& help,
                             const std::vector<double>& buckets, const Labels& labels) {
  const std::lock_guard guard(impl_->lock);
  try {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
    return Histogram(&family.Add(labels, prometheus::Histogram::BucketBoundaries(buckets)));
  } catch (const std::exception& error) {
    log_error("metric {}: {}", name, error.what());
    return {};
  }
}

std::string Metrics::render() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace tandem::observe
