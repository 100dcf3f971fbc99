// WorkPool: a few threads for work that would hold a reactor up (reading and tokenizing a message
// of megabytes), so that health checks and running streams never wait for it.
//
//   Result<Parsed> parsed = co_await run_on_body<Parsed>(
//       pool, reactor, request.body, [](const std::string& body) { return parse(body); }, limit);
//
// Bounds: the number of waiting pieces of work. Heavy pieces never take the last free thread, so a
// few huge messages cannot keep ordinary ones waiting.
//
// Thread-safety: submit() from any thread. Destroy (or stop()) the pool before the reactors that it
// answers to.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/event.h"
#include "net/reactor.h"

namespace tandem::net {

class WorkPool {
 public:
  enum class Weight { kLight, kHeavy };

  // `threads`: at least 2 are made.
  explicit WorkPool(size_t threads, size_t max_waiting = 256);
  ~WorkPool() { stop(); }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when too much waits already, or after stop().
  bool submit(std::function<void()> work, Weight weight);
  // Waits for what runs; drops what waits. Idempotent.
  void stop();
  size_t waiting() const;

 private:
  void run();
  std::deque<std::function<void()>>* next_queue();

  const size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> light_, heavy_;
  size_t heavy_running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Runs `work` on the pool and comes back to the reactor. Errors besides the work's own: 503
// "overloaded" when the pool is full, 503 "preparation_timeout" when `limit` passed; the work may
// then still run, so it must own all that it touches.
template <typename T>
asio::awaitable<Result<T>> run_on(WorkPool& pool, Reactor& reactor, std::function<Result<T>()> work,
                                  WorkPool::Weight weight, Duration limit) {
  struct State {
    explicit State(Reactor& owner) : done(owner) {}
    std::optional<Result<T>> result;
    Event done;
  };
  auto state = std::make_shared<State>(reactor);
  // The last reference may be the task's: it goes away on the reactor, where the Event belongs.
  const bool taken = pool.submit(
      [state, work = std::move(work), &reactor]() mutable {
        try {
          state->result = work();
        } catch (const std::exception& error) {
          state->result = internal_error(std::string("preparing a request: ") + error.what());
        }
        work = nullptr;
        reactor.post([state = std::move(state)] { state->done.notify(); });
      },
      weight);
  if (!taken) co_return make_error(503, "overloaded", "too many requests wait; retry in a moment");
  if (!co_await state->done.wait_for(limit)) {
    co_return make_error(503, "preparation_timeout",
                         "the request could not be read in time; retry in a moment");
  }
  co_return std::move(*state->result);
}

// Bodies up to this are worked on where they arrived: sooner done than handed over.
inline constexpr size_t kInlineBody = 4UL << 10;
inline constexpr size_t kHeavyBody = 256UL << 10;

// Runs `work(body)` on the pool, or at once when the body is small. `body` is there again
// afterwards, unless the error is a pool's own. Anything else that `work` touches it must own, or
// know to outlive the pool.
template <typename T>
asio::awaitable<Result<T>> run_on_body(WorkPool& pool, Reactor& reactor, std::string& body,
                                       std::function<Result<T>(const std::string&)> work,
                                       Duration limit) {
  if (body.size() <= kInlineBody) co_return work(body);
  const auto weight =
      body.size() > kHeavyBody ? WorkPool::Weight::kHeavy : WorkPool::Weight::kLight;
  auto owned = std::make_shared<std::string>(std::move(body));
  Result<T> result = co_await run_on<T>(
      pool, reactor, [owned, work = std::move(work)] { return work(*owned); }, weight, limit);
  if (result || result.error().status != 503) body = std::move(*owned);
  co_return result;
}

}  // namespace tandem::net
