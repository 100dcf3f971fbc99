// TimerQueue: a thread that runs functions at their times. For the fault-injecting transport.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace tandem::kv {

class TimerQueue {
 public:
  TimerQueue() {
    thread_ = std::thread([core = core_] { core->run(); });
  }
  ~TimerQueue() {  // its own thread may be the last to let go of it
    {
      const std::lock_guard guard(core_->lock);
      core_->stopping = true;
    }
    core_->changed.notify_one();
    if (std::this_thread::get_id() == thread_.get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  void run_at(TimePoint at, std::function<void()> function) {
    {
      const std::lock_guard guard(core_->lock);
      core_->waiting.emplace(at, std::move(function));
    }
    core_->changed.notify_one();
  }

 private:
  struct Core {
    std::mutex lock;
    std::condition_variable changed;
    bool stopping = false;
    std::multimap<TimePoint, std::function<void()>> waiting;

    void run() {
      std::unique_lock guard(lock);
      while (!stopping) {
        if (waiting.empty()) {
          changed.wait(guard);
        } else if (waiting.begin()->first > std::chrono::steady_clock::now()) {
          changed.wait_until(guard, waiting.begin()->first);
        } else {
          auto first = waiting.extract(waiting.begin());
          guard.unlock();
          first.mapped()();
          first = {};
          guard.lock();
        }
      }
    }
  };

  std::shared_ptr<Core> core_ = std::make_shared<Core>();
  std::thread thread_;
};

}  // namespace tandem::kv
