#include "net/work_pool.h"

#include <algorithm>
#include <exception>

#include "observe/log.h"

namespace tandem::net {

WorkPool::WorkPool(size_t threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (size_t i = 0; i < std::max<size_t>(threads, 2); ++i)
    threads_.emplace_back([this] { run(); });
}

bool WorkPool::submit(std::function<void()> work, Weight weight) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || light_.size() + heavy_.size() >= max_waiting_) return false;
    (weight == Weight::kHeavy ? heavy_ : light_).push_back(std::move(work));
  }
  ready_.notify_one();
  return true;
}

std::deque<std::function<void()>>* WorkPool::next_queue() {
  if (!light_.empty()) return &light_;
  return !heavy_.empty() && heavy_running_ + 1 < threads_.size() ? &heavy_ : nullptr;
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::deque<std::function<void()>>* queue = nullptr;
    ready_.wait(lock, [&] { return stopping_ || (queue = next_queue()) != nullptr; });
    if (stopping_) return;
    std::function<void()> work = std::move(queue->front());
    queue->pop_front();
    const bool heavy = queue == &heavy_;
    if (heavy) ++heavy_running_;
    lock.unlock();
    try {
      work();
    } catch (const std::exception& error) {
      observe::log_error("exception in a work pool: {}", error.what());
    }
    work = nullptr;
    lock.lock();
    if (heavy) {
      --heavy_running_;
      ready_.notify_one();
    }
  }
}

void WorkPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  const std::lock_guard lock(mutex_);
  light_.clear();
  heavy_.clear();
}

size_t WorkPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return light_.size() + heavy_.size();
}

}  // namespace tandem::net
