// ComputeThreads: the few threads that run one device's kernels in lock step.
//
// parallel() runs the same function on every thread, the caller included, and returns when all are
// done. Work is split statically by (index, count), so that what a thread computes never depends on
// timing. Between calls the helpers spin briefly (the next operator usually comes within
// microseconds), then sleep in the kernel, so an idle worker costs nothing. With one thread
// parallel() is a plain call.
//
// parallel() may be called from one thread at a time, never from inside itself. Functions must not
// throw.
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

  // Calls function(index, count) once on each thread, index 0 on the caller.
  template <typename Function>
  void parallel(Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    run([](void* context, int index,
           int count) noexcept { (*static_cast<Plain*>(context))(index, count); },
        const_cast<void*>(static_cast<const void*>(&function)));
  }

 private:
  using Task = void (*)(void* context, int index, int count) noexcept;
  struct Shared;

  void run(Task task, void* context);
  static void helper_loop(Shared& shared, int index);

  int count_ = 1;
  std::unique_ptr<Shared> shared_;
};

// The static split: [begin, end) of `total` units for thread `index` of `count`; sizes differ by at
// most one.
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
