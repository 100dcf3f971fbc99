// EventChannel: carries one sequence's events from the engine's thread to a coroutine on a reactor.
//
// push() may be called from any thread and never waits; events end with a finish or an error, so
// the queue is bounded by the sequence's length. next() on the reactor only. Keep it in a
// shared_ptr: the engine may still push after the coroutine left.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "net/event.h"
#include "net/reactor.h"

namespace tandem::worker {

template <typename T>
class EventChannel : public std::enable_shared_from_this<EventChannel<T>> {
 public:
  explicit EventChannel(net::Reactor& reactor) : reactor_(reactor), event_(reactor) {}

  void push(T value) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(value));
      wake = !std::exchange(signalled_, true);
    }
    if (wake) reactor_.post([self = this->shared_from_this()] { self->event_.notify(); });
  }

  // Ends waiting in next() without an event.
  void interrupt() {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
    }
    reactor_.post([self = this->shared_from_this()] { self->event_.notify(); });
  }

  std::optional<T> try_next() {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      signalled_ = false;
      return std::nullopt;
    }
    T value = std::move(queue_.front());
    queue_.pop_front();
    return value;
  }

  // The next event; nothing when `until` passed or the channel was interrupted.
  boost::asio::awaitable<std::optional<T>> next(TimePoint until) {
    while (true) {
      if (auto value = try_next()) co_return value;
      const TimePoint now = std::chrono::steady_clock::now();
      if (now >= until || is_interrupted()) co_return std::nullopt;
      co_await event_.wait_for(until - now);
    }
  }

 private:
  bool is_interrupted() {
    const std::lock_guard lock(mutex_);
    return interrupted_;
  }

  net::Reactor& reactor_;
  net::Event event_;
  std::mutex mutex_;
  std::deque<T> queue_;
  bool signalled_ = false;
  bool interrupted_ = false;
};

}  // namespace tandem::worker
