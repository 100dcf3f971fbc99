// EventLoop: virtual time. Events run one after another in the order of their times; those of the
// same time in the order in which they were added. Nothing else tells the time, so a run is a
// function of its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"

namespace tandem::sim {

// SplitMix64 (Steele et al. 2014): the same numbers with every compiler and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // In [0, below); 0 when `below` is 0.
  int64_t pick(int64_t below);
  int64_t between(int64_t least, int64_t most) { return least + pick(most - least + 1); }
  bool chance(double probability);
  // In [least, most], small values more often than large ones.
  Duration time(Duration least, Duration most);

 private:
  uint64_t state_;
};

uint64_t mix(uint64_t a, uint64_t b);

class EventLoop {
 public:
  using Action = std::function<void()>;
  TimePoint now() const { return now_; }
  void at(TimePoint when, Action action);
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }
  // Runs the next event; false when there is none at or before `until` (time is then `until`).
  bool step(TimePoint until);
  uint64_t executed() const { return executed_; }

 private:
  struct Event {
    TimePoint when;
    uint64_t order;
    Action action;
  };
  static bool later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }
  TimePoint now_{};
  std::vector<Event> heap_;
  uint64_t next_order_ = 0;
  uint64_t executed_ = 0;
};

}  // namespace tandem::sim
