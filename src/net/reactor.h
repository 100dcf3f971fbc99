// Reactor: one thread and its event loop. Every connection, timer and coroutine belongs to one
// reactor and is touched only by its thread, so nothing in net needs locks.
//
// Thread-safety: post(), spawn() and stop() from any thread; everything else on the reactor's own
// thread, or before run().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/clock.h"

namespace tandem::net {

namespace asio = boost::asio;

class DeadlineList;
class ParkedList;

class Reactor {
 public:
  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Runs until stop(). An exception that escapes a posted function is logged and the loop goes on.
  void run();
  void stop();
  // Runs `function` on the reactor's thread, never inside this call.
  void post(std::function<void()> function);
  // Starts a coroutine on the reactor's thread; an exception that leaves it is logged.
  void spawn(asio::awaitable<void> coroutine);
  // Suspends for `duration` (resolution about 10 ms; for polling loops). Zero returns at once.
  asio::awaitable<void> sleep(Duration duration);

  asio::any_io_executor executor() { return context_.get_executor(); }
  asio::io_context& context() { return context_; }
  bool stopped() const { return context_.stopped(); }
  DeadlineList& deadlines() { return *deadlines_; }
  ParkedList& parked() { return *parked_; }

 private:
  // Coroutines that die with the context may hold deadlines and parked waits: both lists go last.
  std::unique_ptr<DeadlineList> deadlines_;
  std::unique_ptr<ParkedList> parked_;
  asio::io_context context_;
};

// Runs `coroutine` to its end on `reactor`, whose run() must not be running elsewhere. For tests
// and the CLI.
void run_until_done(Reactor& reactor, asio::awaitable<void> coroutine);

// A moment at which `action` runs unless it is disarmed or re-armed first. Arming is two stores:
// all deadlines of a reactor share one coarse tick (kDeadlineTick), so a deadline fires at most
// that much late.
inline constexpr Duration kDeadlineTick = std::chrono::milliseconds(10);

class Deadline {
 public:
  Deadline(Reactor& reactor, std::function<void()> action);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void arm(Duration from_now);  // zero or negative: disarms
  void disarm() { at_ = TimePoint::max(); }

 private:
  friend class DeadlineList;
  class ParkedList;
  Reactor& reactor_;
  TimePoint at_ = TimePoint::max();
  std::function<void()> action_;
  Deadline* next_ = nullptr;
  Deadline* previous_ = nullptr;
};

}  // namespace tandem::net
