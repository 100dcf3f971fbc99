#include "router/policy/expected_output.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::router {

namespace {

uint64_t join(uint64_t key, uint64_t model) {
  const uint64_t product = (key ^ (key >> 31)) * 0x9e3779b97f4a7c15ULL;
  return product ^ model;
}

}  // namespace

ExpectedOutput::ExpectedOutput(size_t max_bytes)
    : max_entries_(std::max<size_t>(max_bytes / kEntryBytes, 2)) {}

const ExpectedOutput::Entry* ExpectedOutput::find(uint64_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &*found->second;
}

void ExpectedOutput::add(uint64_t id, double tokens) {
  auto found = entries_.find(id);
  if (found == entries_.end()) {
    if (entries_.size() >= max_entries_) {
      entries_.erase(order_.front().id);
      order_.pop_front();
    }
    found = entries_.emplace(id, order_.insert(order_.end(), Entry{id, 0, 0})).first;
  }
  order_.splice(order_.end(), order_, found->second);
  Entry& entry = *found->second;
  entry.weight = std::min(entry.weight + 1, kMemory);
  entry.mean += (tokens - entry.mean) / entry.weight;
}

void ExpectedOutput::observe(uint64_t key, uint64_t model, int64_t tokens) {
  const auto seen = static_cast<double>(std::max<int64_t>(tokens, 0));
  if (key != 0) add(join(key, model), seen);
  add(model, seen);
}

int32_t ExpectedOutput::expect(uint64_t key, uint64_t model, int64_t limit) const {
  double expected = kUsual;
  const Entry* const own = key == 0 ? nullptr : find(join(key, model));
  const Entry* const all = find(model);
  if (own != nullptr && (own->weight >= kEnough || all == nullptr)) {
    expected = own->mean;
  } else if (all != nullptr) {
    expected = all->mean;
  }
  if (limit > 0) expected = std::min(expected, static_cast<double>(limit));
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::clamp(std::round(expected), 1.0, kMost));
}

}  // namespace tandem::router
