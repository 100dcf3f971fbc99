#include "device/compute_threads.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/environment.h"

namespace tandem::device {
namespace {

using Clock = std::chrono::steady_clock;

// A waiter spins, then gives way to whoever else wants its core while it goes on looking, then
// sleeps. Waking a sleeper takes 50 microseconds and more where the core was halted, ten times an
// operator of a small model, so sleep has to be rare while work goes on; between two decode steps
// lie some hundred microseconds.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kAwake = std::chrono::microseconds(2000);

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

// Waits awake until ready(); false: the time is over.
template <typename Ready>
bool wait_awake(Ready&& ready) {
  constexpr int kPausesPerLook = 32;
  Clock::time_point begin;
  for (int round = 0;; ++round) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
    const Clock::time_point now = Clock::now();
    if (round == 0) begin = now;
    if (now - begin > kAwake) return false;
    if (now - begin > kSpin) ::sched_yield();
  }
}

// The CPUs that this process may use if binding is wished and they are `count`, else none.
std::vector<int> cpus_for(int count) {
  if (environment("TANDEM_PIN") != "on") return {};
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  if (cpus.size() != static_cast<size_t>(count)) cpus.clear();
  return cpus;
}

constexpr uint32_t low_half(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

}  // namespace

// A run is published by storing `ticket`: the run's number above, the parts that nobody has claimed
// below. Who lowers it by one with a compare-and-swap has claimed a part of that very run, and the
// run's fields stay as they are until `pending`, the parts that are not done, is 0.
//
// Sleepers announce themselves, so that nobody makes a system call while all are awake.
// Announcement, publication and the two checks are sequentially consistent: either the publisher
// sees the sleeper, or the sleeper sees the new number and its futex call returns.
struct ComputeThreads::Shared {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<uint32_t> pending{0};
  std::atomic<uint32_t> caller_sleeps{0};
  alignas(64) std::atomic<uint32_t> number{0};  // the run's, as a futex word
  std::atomic<uint32_t> sleepers{0};
  Task task = nullptr;
  void* context = nullptr;
  uint32_t parts = 0;
  std::atomic<bool> stop{false};
  std::vector<std::thread> helpers;

  bool has_parts() const { return low_half(ticket.load(std::memory_order_acquire)) != 0; }
  bool wanted() const { return has_parts() || stop.load(std::memory_order_relaxed); }

  void sleep_until_wanted() {
    sleepers.fetch_add(1);
    for (;;) {
      const uint32_t seen = number.load();
      if (low_half(ticket.load()) != 0 || stop.load()) break;
      futex_wait(number, seen);
    }
    sleepers.fetch_sub(1);
  }

  void wake_sleepers() {
    if (sleepers.load() != 0) futex_wake_all(number);
  }

  void finish_parts(uint32_t count) {
    if (pending.fetch_sub(count) == count && caller_sleeps.load() != 0) futex_wake_all(pending);
  }

  void wait_finished() {
    if (wait_awake([&] { return pending.load(std::memory_order_acquire) == 0; })) return;
    caller_sleeps.store(1);
    for (uint32_t left = pending.load(); left != 0; left = pending.load())
      futex_wait(pending, left);
    caller_sleeps.store(0);
  }
};

ComputeThreads::ComputeThreads(int count) {
  count_ = std::clamp(count, 1, kMaxThreads);
  if (count_ == 1) return;
  cpus_ = cpus_for(count_);
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

void ComputeThreads::bind(int thread) const {
  if (cpus_.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpus_[static_cast<size_t>(thread)], &one);
  ::sched_setaffinity(0, sizeof(one), &one);  // refused: the system goes on choosing
}

void ComputeThreads::bind_caller() const { bind(0); }

ComputeThreads::~ComputeThreads() {
  if (!shared_) return;
  shared_->stop.store(true);
  shared_->number.fetch_add(1);
  shared_->wake_sleepers();
  for (std::thread& helper : shared_->helpers) helper.join();
}

// Claims and runs parts until none is left; how many.
int ComputeThreads::take_parts(Shared& shared, int thread) {
  int taken = 0;
  uint64_t ticket = shared.ticket.load(std::memory_order_acquire);
  while (low_half(ticket) != 0) {
    if (!shared.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire))
      continue;
    shared.task(shared.context, thread, static_cast<int>(shared.parts - low_half(ticket)));
    ++taken;
    ticket = shared.ticket.load(std::memory_order_acquire);
  }
  return taken;
}

void ComputeThreads::helper_loop(Shared& shared, int thread) const {
  bind(thread);
  for (;;) {
    if (!wait_awake([&] { return shared.wanted(); })) shared.sleep_until_wanted();
    if (shared.stop.load()) return;
    // Parts of two runs cannot mix here: a run does not end before this helper tells of its parts.
    if (const int taken = take_parts(shared, thread); taken > 0)
      shared.finish_parts(static_cast<uint32_t>(taken));
  }
}

void ComputeThreads::run(Task task, void* context, int parts) {
  if (count_ == 1 || parts <= 1) {
    for (int part = 0; part < parts; ++part) task(context, 0, part);
    return;
  }
  Shared& shared = *shared_;
  shared.task = task;
  shared.context = context;
  shared.parts = static_cast<uint32_t>(parts);
  shared.pending.store(shared.parts, std::memory_order_relaxed);
  const uint32_t number = shared.number.load(std::memory_order_relaxed) + 1;
  shared.ticket.store(uint64_t{number} << 32 | shared.parts);
  shared.number.store(number);  // behind the ticket: who saw it and no parts may sleep
  shared.wake_sleepers();
  shared.finish_parts(static_cast<uint32_t>(take_parts(shared, 0)));
  shared.wait_finished();
}

}  // namespace tandem::device
