#include "net/reactor.h"

#include <exception>
#include <optional>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "net/block_cache.h"
#include "net/event.h"
#include "net/parked.h"
#include "observe/log.h"

namespace tandem::net {

namespace {

void log_escaped(const char* where) {
  try {
    throw;
  } catch (const std::exception& error) {
    observe::log_error("exception in {}: {}", where, error.what());
  } catch (...) {
    observe::log_error("unknown exception in {}", where);
  }
}

}  // namespace

// Armed deadlines in no order; the timer is set for the earliest. Disarmed ones are unlinked when
// the list is scanned.
class DeadlineList {
 public:
  void open(asio::io_context& context) { timer_.emplace(context); }
  void close() { timer_.reset(); }

  void insert(Deadline& deadline) {
    if (deadline.previous_ != nullptr || head_ == &deadline) return;
    deadline.next_ = head_;
    if (head_ != nullptr) head_->previous_ = &deadline;
    head_ = &deadline;
  }

  void remove(Deadline& deadline) {
    if (cursor_ == &deadline) cursor_ = deadline.next_;
    if (deadline.previous_ != nullptr) deadline.previous_->next_ = deadline.next_;
    if (deadline.next_ != nullptr) deadline.next_->previous_ = deadline.previous_;
    if (head_ == &deadline) head_ = deadline.next_;
    deadline.next_ = deadline.previous_ = nullptr;
  }

  void schedule(TimePoint at) {
    if (!timer_ || at >= fires_at_) return;
    fires_at_ = at;
    timer_->expires_at(at);  // cancels the earlier wait
    timer_->async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }

 private:
  void tick() {
    const TimePoint now = std::chrono::steady_clock::now();
    fires_at_ = TimePoint::max();
    TimePoint earliest = TimePoint::max();
    cursor_ = head_;
    while (cursor_ != nullptr) {
      Deadline& deadline = *cursor_;
      cursor_ = deadline.next_;
      if (deadline.at_ <= now) {
        deadline.at_ = TimePoint::max();
        remove(deadline);
        try {
          auto action = deadline.action_;  // the action may destroy its deadline
          action();
        } catch (...) {
          log_escaped("a deadline");
        }
      } else if (deadline.at_ == TimePoint::max()) {
        remove(deadline);
      } else {
        earliest = std::min(earliest, deadline.at_);
      }
    }
    if (earliest != TimePoint::max()) schedule(std::max(earliest, now + kDeadlineTick));
  }

  Deadline* head_ = nullptr;
  Deadline* cursor_ = nullptr;
  TimePoint fires_at_ = TimePoint::max();
  std::optional<asio::steady_timer> timer_;
};

Deadline::Deadline(Reactor& reactor, std::function<void()> action)
    : reactor_(reactor), action_(std::move(action)) {}

Deadline::~Deadline() { reactor_.deadlines().remove(*this); }

void Deadline::arm(Duration from_now) {
  if (from_now <= Duration::zero()) return disarm();
  const TimePoint now = std::chrono::steady_clock::now();
  at_ = from_now >= TimePoint::max() - now ? TimePoint::max() - Duration(1) : now + from_now;
  reactor_.deadlines().insert(*this);
  reactor_.deadlines().schedule(at_);
}

Reactor::Reactor()
    : deadlines_(std::make_unique<DeadlineList>()),
      parked_(std::make_unique<ParkedList>()),
      context_(1) {
  deadlines_->open(context_);
}

Reactor::~Reactor() {
  deadlines_->close();
  parked_->drop_all();
}

void Reactor::run() {
  const BlockCache kept;
  auto guard = asio::make_work_guard(context_);
  while (!context_.stopped()) {
    try {
      context_.run();
    } catch (...) {
      log_escaped("a reactor");
    }
  }
}

void Reactor::stop() { context_.stop(); }

void Reactor::post(std::function<void()> function) { asio::post(context_, std::move(function)); }

void Reactor::spawn(asio::awaitable<void> coroutine) {
  asio::co_spawn(context_, std::move(coroutine), [](const std::exception_ptr& error) {
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (...) {
      log_escaped("a coroutine");
    }
  });
}

asio::awaitable<void> Reactor::sleep(Duration duration) {
  Event never(*this);
  co_await never.wait_for(duration);
}

void run_until_done(Reactor& reactor, asio::awaitable<void> coroutine) {
  asio::io_context& context = reactor.context();
  std::exception_ptr failure;
  bool done = false;
  asio::co_spawn(context, std::move(coroutine), [&](const std::exception_ptr& error) {
    failure = error;
    done = true;
    context.stop();
  });
  while (!done) {
    context.restart();
    reactor.run();
  }
  context.restart();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tandem::net
