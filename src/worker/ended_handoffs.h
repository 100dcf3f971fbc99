// EndedHandoffs: what became of the prefill legs that ended here lately, so that a decode worker
// that dials late is told at once, and why. Bounded in number and in time. Not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::worker {

class EndedHandoffs {
 public:
  static constexpr size_t kMost = 4096;
  static constexpr Duration kKept = std::chrono::seconds(60);

  void add(const std::string& id, Error error, TimePoint now) {
    while (!order_.empty() && (order_.size() >= kMost || now - order_.front().second >= kKept)) {
      const auto at = ended_.find(order_.front().first);
      if (at != ended_.end() && at->second.at == order_.front().second) ended_.erase(at);
      order_.pop_front();
    }
    ended_.insert_or_assign(id, Ended{std::move(error), now});
    order_.emplace_back(id, now);
  }
  // The id is used once more.
  void forget(const std::string& id) { ended_.erase(id); }
  // Null: nothing is known.
  const Error* find(const std::string& id, TimePoint now) const {
    const auto at = ended_.find(id);
    return at == ended_.end() || now - at->second.at >= kKept ? nullptr : &at->second.error;
  }
  size_t size() const { return ended_.size(); }

 private:
  struct Ended {
    Error error;
    TimePoint at;
  };
  std::unordered_map<std::string, Ended> ended_;
  std::deque<std::pair<std::string, TimePoint>> order_;
};

}  // namespace tandem::worker
