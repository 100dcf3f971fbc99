#include "net/work_pool.h"

#include <atomic>
#include <latch>

#include <gtest/gtest.h>

namespace tandem::net {
namespace {

using namespace std::chrono_literals;
using Weight = WorkPool::Weight;

TEST(WorkPool, ComesBackToTheReactorWithTheResultOrTheError) {
  Reactor reactor;
  WorkPool pool(2);
  const auto here = std::this_thread::get_id();
  run_until_done(reactor, [&]() -> asio::awaitable<void> {
    std::thread::id there;
    auto good = co_await run_on<int>(
        pool, reactor,
        [&]() -> Result<int> {
          there = std::this_thread::get_id();
          return 7;
        },
        Weight::kLight, 5s);
    EXPECT_EQ(good.value_or(0), 7);
    EXPECT_NE(there, here);
    EXPECT_EQ(std::this_thread::get_id(), here);
    auto thrown = co_await run_on<int>(
        pool, reactor, []() -> Result<int> { throw std::runtime_error("x"); }, Weight::kLight, 5s);
    EXPECT_EQ(thrown.error().status, 500);
  }());
}

TEST(WorkPool, HeavyWorkNeverTakesTheLastThread) {
  Reactor reactor;
  std::latch release(1);  // both outlive the pool, whose last work may still use them
  std::atomic<int> heavy = 0;
  WorkPool pool(2);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pool.submit(
        [&] {
          ++heavy;
          release.wait();
        },
        Weight::kHeavy));
  }
  run_until_done(reactor, [&]() -> asio::awaitable<void> {
    auto light =
        co_await run_on<int>(pool, reactor, []() -> Result<int> { return 1; }, Weight::kLight, 5s);
    EXPECT_TRUE(light);
    auto late = co_await run_on<int>(
        pool, reactor, []() -> Result<int> { return 1; }, Weight::kHeavy, 50ms);
    EXPECT_EQ(late.error().code, "preparation_timeout");
  }());
  EXPECT_EQ(heavy, 1);
  release.count_down();
}

TEST(WorkPool, BeyondItsBoundItSaysSo) {
  std::latch release(1);
  WorkPool pool(2, 3);
  int taken = 0;
  while (taken < 100 && pool.submit([&] { release.wait(); }, Weight::kHeavy)) ++taken;
  EXPECT_LE(taken, 4);
  EXPECT_GE(taken, 3);
  release.count_down();
  pool.stop();
  EXPECT_FALSE(pool.submit([] {}, Weight::kLight));
}

}  // namespace
}  // namespace tandem::net
