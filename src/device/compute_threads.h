// ComputeThreads: the few threads that run one device's kernels in lock step.
//
// parallel_parts() runs a function once for each part of some work, on the caller and on every
// helper that is there in time, and returns when all parts are done. Parts are claimed, not dealt:
// a helper that the system put aside, or that sleeps, delays nothing but the part it holds, and
// with none the caller does all of it. So which thread computes a part depends on timing; what is
// computed must not, and no result may depend on how work was cut.
//
// Between calls the helpers spin for a while (the next operator usually comes within microseconds;
// in a virtual machine waking a sleeping core takes longer than most operators), then offer their
// core to others, then sleep in the kernel, so an idle worker costs nothing. With one thread
// everything is a plain call.
//
// The system chooses where threads run. With `TANDEM_PIN=on` in the environment, for a machine that
// does nothing else, those that are as many as the CPUs this process may use stay on one each:
// beside one other busy process that halves a decode step's rate. Threads that make the calls stay
// free unless they bind themselves, as the engine's does.
//
// Calls come from one thread at a time, never from inside themselves. Functions must not throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem::device {

class ComputeThreads {
 public:
  // `count` threads, the caller's included; clamped to 1..kMaxThreads. If the system refuses to
  // start them all, count() says how many there are.
  explicit ComputeThreads(int count);
  ~ComputeThreads();
  ComputeThreads(const ComputeThreads&) = delete;
  ComputeThreads& operator=(const ComputeThreads&) = delete;

  static constexpr int kMaxThreads = 256;

  int count() const { return count_; }

  // Binds the calling thread beside the helpers, where those are bound: for a thread that has
  // nothing else to do than the calls from now on. (Threads that it starts inherit the binding.)
  void bind_caller() const;

  // Calls function(thread, part) once for each part in [0, parts); parts is at least 0. `thread`,
  // in [0, count()), is the same for no two calls that run at once: it names scratch memory.
  template <typename Function>
  void parallel_parts(int parts, Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    run([](void* context, int thread,
           int part) noexcept { (*static_cast<Plain*>(context))(thread, part); },
        const_cast<void*>(static_cast<const void*>(&function)), parts);
  }

  // The same with a part for each thread: calls function(index, count()) once for each index.
  template <typename Function>
  void parallel(Function&& function) {
    parallel_parts(count_, [&](int, int index) { function(index, count_); });
  }

 private:
  using Task = void (*)(void* context, int thread, int part) noexcept;
  struct Shared;

  void run(Task task, void* context, int parts);
  static int take_parts(Shared& shared, int thread);
  void helper_loop(Shared& shared, int thread) const;
  void bind(int thread) const;

  int count_ = 1;
  std::vector<int> cpus_;  // one for each thread; empty: not bound
  std::unique_ptr<Shared> shared_;
};

// An even split: [begin, end) of `total` units for part `index` of `count`; sizes differ by at most
// one.
struct WorkRange {
  int32_t begin = 0;
  int32_t end = 0;
};
inline WorkRange split_work(int32_t total, int index, int count) {
  const auto begin = static_cast<int32_t>(static_cast<int64_t>(total) * index / count);
  const auto end = static_cast<int32_t>(static_cast<int64_t>(total) * (index + 1) / count);
  return {begin, end};
}

}  // namespace tandem::device
