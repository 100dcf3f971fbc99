// Supervisor: starts worker processes of this program, waits until they are ready, and starts them
// again when they die.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "base/clock.h"
#include "base/result.h"
#include "worker/worker.h"

namespace tandem::cli {

struct ChildSpec {
  std::string name;                      // "prefill-0"
  std::vector<std::string> words;        // arguments after the program's name; --port is added
  std::vector<std::string> environment;  // NAME=value, besides this process's own
};

struct ChildReady {
  uint16_t port = 0;
  std::string model;
  int32_t context_length = 0;
  model::MemoryBudget memory;
};

class Supervisor {
 public:
  static constexpr Duration kStartLimit = std::chrono::minutes(5);
  using OnRestart = std::function<void(size_t index, uint16_t port)>;
  explicit Supervisor(std::vector<ChildSpec> children)
      : specs_(std::move(children)), pids_(specs_.size()) {}
  ~Supervisor();  // ends what still runs

  // Starts all of them; returns when each is ready, with the first failure, or with "interrupted".
  Result<std::vector<ChildReady>> start(Duration limit = kStartLimit);
  void interrupt() { stopping_ = true; }  // any thread: start() gives up
  bool interrupted() const { return stopping_; }
  // Watches from a thread of its own until stop(); a child that dies is started again on its port
  // (on another one if that start fails), after a pause that grows while it keeps dying.
  void watch(OnRestart on_restart);
  // SIGTERM to all, then SIGKILL to those that are still there after `limit`.
  void stop(Duration limit);

 private:
  struct Starting {  // a child that has not said yet that it is ready
    int descriptor = -1;
    std::string line = {};
    Starting() = default;
    Starting(const Starting&) = delete;
    Starting& operator=(const Starting&) = delete;
    ~Starting() { reset(); }
    bool pending() const { return descriptor >= 0; }
    void reset(int next = -1);
  };
  struct Watched {
    Starting starting;
    int failures = 0;
    TimePoint next_try = TimePoint::min();
    TimePoint started = std::chrono::steady_clock::now();
  };
  Result<int> spawn(size_t index, uint16_t port);  // where its answer will come
  void watch_loop();
  void start_again(size_t index, Watched& child);
  void look_after(size_t index, Watched& child);

  std::vector<ChildSpec> specs_;
  std::vector<std::atomic<pid_t>> pids_;
  std::vector<uint16_t> ports_;
  OnRestart on_restart_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::cli
