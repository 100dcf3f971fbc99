#include "device/compute_threads.h"

#include <algorithm>
#include <climits>
#include <system_error>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tandem::device {
namespace {

// About 20-50 microseconds of pauses: longer than the serial work between two operators, shorter
// than a scheduler tick, and cheap next to the futex wake-up it saves.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
            nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
            nullptr, 0);
}

// A counter that one side raises and others wait on. Sleepers announce themselves so that raising
// it costs no system call while everybody spins. The announcement, the raise and the two checks are
// sequentially consistent: either the raiser sees the sleeper, or the sleeper sees the new value
// and the futex call returns.
struct alignas(64) Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  void raise() {
    value.fetch_add(1);
    if (sleepers.load() != 0) futex_wake_all(value);
  }

  // Waits until the value differs from `seen`.
  void wait_change(uint32_t seen) {
    for (int i = 0; i < kSpins; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return;
      pause();
    }
    sleepers.fetch_add(1);
    while (value.load() == seen) futex_wait(value, seen);
    sleepers.fetch_sub(1);
  }
};

}  // namespace

struct ComputeThreads::Shared {
  Signal start;         // raised once per parallel()
  Signal done;          // raised by each helper when its part ends
  Task task = nullptr;  // task, context and count are written before start is raised
  void* context = nullptr;
  int count = 1;
  bool stop = false;
  std::vector<std::thread> helpers;
};

ComputeThreads::ComputeThreads(int count) {
  count_ = std::clamp(count, 1, kMaxThreads);
  if (count_ == 1) return;
  shared_ = std::make_unique<Shared>();
  for (int index = 1; index < count_; ++index) {
    try {
      shared_->helpers.emplace_back([this, index] { helper_loop(*shared_, index); });
    } catch (const std::system_error&) {
      count_ = index;
      break;
    }
  }
}

ComputeThreads::~ComputeThreads() {
  if (!shared_) return;
  shared_->stop = true;
  shared_->start.raise();
  for (std::thread& helper : shared_->helpers) helper.join();
}

void ComputeThreads::helper_loop(Shared& shared, int index) {
  uint32_t seen = 0;
  for (;;) {
    shared.start.wait_change(seen);
    ++seen;
    if (shared.stop) return;
    shared.task(shared.context, index, shared.count);
    shared.done.raise();
  }
}

void ComputeThreads::run(Task task, void* context) {
  if (count_ == 1) {
    task(context, 0, 1);
    return;
  }
  Shared& shared = *shared_;
  shared.task = task;
  shared.context = context;
  shared.count = count_;
  const uint32_t finished = shared.done.value.load(std::memory_order_relaxed);
  shared.start.raise();
  task(context, 0, count_);
  const uint32_t target = finished + static_cast<uint32_t>(count_ - 1);
  for (;;) {
    const uint32_t value = shared.done.value.load();
    if (value == target) return;
    shared.done.wait_change(value);
  }
}

}  // namespace tandem::device
