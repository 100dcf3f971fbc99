#include "sim/event_loop.h"

#include <algorithm>
#include <utility>

namespace tandem::sim {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b * 0xff51afd7ed558ccdULL)) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  return mix(state_, 0);
}

int64_t Random::pick(int64_t below) {
  return below <= 0 ? 0 : static_cast<int64_t>(next() % static_cast<uint64_t>(below));
}

bool Random::chance(double probability) {
  return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
}

Duration Random::time(Duration least, Duration most) {
  // The product of two uniform numbers.
  const auto span = (most - least).count();
  const auto unit = static_cast<double>(next() >> 11) * 0x1.0p-53;
  return least + Duration(static_cast<int64_t>(static_cast<double>(pick(span + 1)) * unit));
}

void EventLoop::at(TimePoint when, Action action) {
  heap_.push_back({std::max(when, now_), next_order_++, std::move(action)});
  std::ranges::push_heap(heap_, later);
}

bool EventLoop::step(TimePoint until) {
  if (heap_.empty() || heap_.front().when > until) {
    now_ = std::max(now_, until);
    return false;
  }
  std::ranges::pop_heap(heap_, later);
  Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.when;
  ++executed_;
  event.action();
  return true;
}

}  // namespace tandem::sim
