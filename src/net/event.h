// Event: lets coroutines of one reactor wait for something that happens on that reactor. To signal
// from another thread (an engine's), reactor.post() a function that fills a queue and calls
// notify().
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "net/reactor.h"

namespace tandem::net {

class Event {
 public:
  explicit Event(Reactor& reactor);
  ~Event();  // waiters are released as by notify()
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Suspends until the next notify(). A notify() with no waiter is remembered for the next wait
  // (once).
  asio::awaitable<void> wait();
  // The same with a limit; false when the time passed first. Zero or negative: returns at once.
  asio::awaitable<bool> wait_for(Duration limit);
  // Wakes every waiter; they run later on the reactor, never inside this call.
  void notify();
  // The same, but they run inside this call, which must stand where a handler of the reactor has
  // nothing more to do that they could disturb: what was just read is still in the cache then.
  void notify_now();

 private:
  class Waiter;
  template <typename Handler>
  class WaiterOf;
  asio::awaitable<bool> park(Duration limit);
  void wake(bool now);

  Reactor& reactor_;
  bool signalled_ = false;
  std::vector<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace tandem::net
