#include "net/event.h"

#include <optional>
#include <utility>

#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "net/parked.h"

namespace tandem::net {

class Event::Waiter : public Parked {
 public:
  explicit Waiter(Reactor& reactor) : reactor_(reactor) { reactor_.parked().insert(*this); }
  ~Waiter() override {
    if (parked_) reactor_.parked().remove(*this);
  }

  void limit(Duration duration, Event& event) {
    deadline_.emplace(reactor_, [this, &event] {
      // Out of the list first: the event may be gone by the time the coroutine runs.
      for (auto waiter = event.waiters_.begin(); waiter != event.waiters_.end(); ++waiter) {
        if (waiter->get() != this) continue;
        const std::shared_ptr<Waiter> self = std::move(*waiter);
        event.waiters_.erase(waiter);
        self->resume(false);
        return;
      }
    });
    deadline_->arm(duration);
  }

  void resume(bool notified, bool now = false) {
    if (!unpark()) return;
    if (reactor_.parked().closing()) {
      destroy();
    } else {
      complete(notified, now);
    }
  }

  void drop() override {
    if (unpark()) destroy();
  }

 protected:
  virtual void complete(bool notified, bool now) = 0;
  virtual void destroy() = 0;
  Reactor& reactor_;

 private:
  bool unpark() {
    if (!parked_) return false;
    parked_ = false;
    reactor_.parked().remove(*this);
    deadline_.reset();
    return true;
  }

  bool parked_ = true;
  std::optional<Deadline> deadline_;
};

template <typename Handler>
class Event::WaiterOf final : public Event::Waiter {
 public:
  WaiterOf(Reactor& reactor, Handler handler) : Waiter(reactor), handler_(std::move(handler)) {}

 private:
  void complete(bool notified, bool now) override {
    Handler handler = std::move(*handler_);
    handler_.reset();
    if (now) return std::move(handler)(notified);
    asio::post(reactor_.context(), [handler = std::move(handler), notified]() mutable {
      std::move(handler)(notified);
    });
  }
  void destroy() override {
    // Destroying the coroutine may destroy this object: move out first.
    std::optional<Handler> handler = std::move(handler_);
    handler_.reset();
  }

  std::optional<Handler> handler_;
};

Event::Event(Reactor& reactor) : reactor_(reactor) {}

Event::~Event() { notify(); }

asio::awaitable<bool> Event::park(Duration limit) {
  return asio::async_initiate<const asio::use_awaitable_t<>, void(bool)>(
      [this, limit](auto handler) {
        auto waiter = std::make_shared<WaiterOf<decltype(handler)>>(reactor_, std::move(handler));
        if (limit != Duration::max()) waiter->limit(limit, *this);
        waiters_.push_back(std::move(waiter));
      },
      asio::use_awaitable);
}

asio::awaitable<void> Event::wait() {
  if (std::exchange(signalled_, false)) co_return;
  co_await park(Duration::max());
}

asio::awaitable<bool> Event::wait_for(Duration limit) {
  if (std::exchange(signalled_, false)) co_return true;
  if (limit <= Duration::zero()) co_return false;
  co_return co_await park(limit);
}

void Event::notify() { wake(false); }

void Event::notify_now() { wake(true); }

void Event::wake(bool now) {
  if (waiters_.empty()) {
    signalled_ = true;
    return;
  }
  std::vector<std::shared_ptr<Waiter>> waiters = std::move(waiters_);
  waiters_.clear();
  for (auto& waiter : waiters) waiter->resume(true, now);
}

}  // namespace tandem::net
