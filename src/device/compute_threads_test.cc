#include "device/compute_threads.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

namespace tandem::device {
namespace {

TEST(ComputeThreads, EveryIndexRunsExactlyOnceAndItsWritesAreVisibleAfterwards) {
  for (const int count : {1, 2, 3, 5}) {
    ComputeThreads threads(count);
    ASSERT_EQ(threads.count(), count);
    std::vector<int> calls(count);
    for (int round = 0; round < 2000; ++round) {
      threads.parallel([&](int index, int total) {
        ASSERT_EQ(total, count);
        ++calls[index];  // plain memory: a missing barrier is a lost update or a sanitizer report
      });
      for (const int n : calls) ASSERT_EQ(n, round + 1);
    }
  }
}

TEST(ComputeThreads, WakesHelpersThatWentToSleep) {
  ComputeThreads threads(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum{0};
    threads.parallel([&](int index, int) {
      if (index == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      sum += index;
    });
    EXPECT_EQ(sum.load(), 3);
  }
}

TEST(ComputeThreads, EveryPartRunsOnceOnAThreadOfItsOwn) {
  ComputeThreads threads(3);
  std::array<std::atomic<int>, 3> busy{};
  for (int round = 0; round < 3000; ++round) {
    const int parts = round % 9;
    std::array<int, 9> calls{};
    threads.parallel_parts(parts, [&](int thread, int part) {
      ASSERT_EQ(busy[static_cast<size_t>(thread)].fetch_add(1), 0);
      ++calls[static_cast<size_t>(part)];
      busy[static_cast<size_t>(thread)].fetch_sub(1);
    });
    for (int part = 0; part < 9; ++part)
      ASSERT_EQ(calls[static_cast<size_t>(part)], part < parts ? 1 : 0);
  }
}

// Whoever holds a core, the caller does what nobody claims.
TEST(ComputeThreads, AHelperThatIsHeldUpDelaysOnlyItsOwnPart) {
  ComputeThreads threads(2);
  std::atomic<int> by_caller{0};
  threads.parallel_parts(40, [&](int thread, int) {
    if (thread == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    by_caller += thread == 0 ? 1 : 0;
  });
  EXPECT_GE(by_caller.load(), 38);
}

double process_cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ComputeThreads, IdleHelpersUseNoCpu) {
  ComputeThreads threads(3);
  threads.parallel([](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(process_cpu_seconds() - before, 0.05);
}

std::vector<int> cpus_of_this_thread() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The CPUs of each of `count` threads, the caller (a thread of its own here) bound as well.
std::vector<std::vector<int>> cpus_of_threads(int count) {
  std::vector<std::vector<int>> seen(static_cast<size_t>(count));
  std::thread([&] {
    ComputeThreads threads(count);
    threads.bind_caller();
    std::atomic<int> arrived{0};
    threads.parallel_parts(count, [&](int thread, int) {
      seen[static_cast<size_t>(thread)] = cpus_of_this_thread();
      ++arrived;
      while (arrived.load() < count) std::this_thread::yield();  // nobody takes two parts
    });
  }).join();
  return seen;
}

TEST(ComputeThreads, StayOnOneCpuEachWhereThatIsWishedAndTheyAreAsMany) {
  const std::vector<int> all = cpus_of_this_thread();
  const auto count = static_cast<int>(all.size());
  if (count < 2 || count > 64) GTEST_SKIP() << "needs 2 to 64 CPUs";
  ASSERT_EQ(::unsetenv("TANDEM_PIN"), 0);
  for (const auto& free : cpus_of_threads(count)) EXPECT_EQ(free, all);
  ASSERT_EQ(::setenv("TANDEM_PIN", "on", 1), 0);
  const auto bound = cpus_of_threads(count);
  for (size_t thread = 0; thread < bound.size(); ++thread)
    EXPECT_EQ(bound[thread], std::vector<int>{all[thread]});
  for (const auto& free : cpus_of_threads(count + 1)) EXPECT_EQ(free, all);
  ASSERT_EQ(::unsetenv("TANDEM_PIN"), 0);
  EXPECT_EQ(cpus_of_this_thread(), all);
}

TEST(SplitWork, CoversEverythingOnceInOrder) {
  for (const int32_t total : {0, 1, 7, 36, 3072}) {
    for (const int count : {1, 2, 3, 8}) {
      int32_t next = 0;
      for (int index = 0; index < count; ++index) {
        const WorkRange range = split_work(total, index, count);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.end - range.begin, total / count + 1);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace tandem::device
