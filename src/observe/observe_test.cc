#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "observe/log.h"
#include "observe/metrics.h"

namespace tandem::observe {
namespace {

TEST(Metrics, TheSameNameAndLabelsAreOneSeries) {
  Metrics metrics;
  Counter a = metrics.counter("tandem_request_success_total", "done", {{"worker", "a"}});
  Counter again = metrics.counter("tandem_request_success_total", "done", {{"worker", "a"}});
  Counter other = metrics.counter("tandem_request_success_total", "done", {{"worker", "b"}});
  a.add();
  again.add(2);
  EXPECT_EQ(a.value(), 3);
  EXPECT_EQ(other.value(), 0);
}

TEST(Metrics, RendersTheTextExposition) {
  Metrics metrics;
  metrics.counter("tandem_prompt_tokens_total", "Prompt tokens.").add(7);
  metrics.gauge("tandem_num_requests_running", "Running.", {{"worker", "http://h:1"}}).set(4);
  metrics.histogram("tandem_time_to_first_token_seconds", "TTFT.", {0.1, 1}).observe(0.5);
  const std::string text = metrics.render();
  EXPECT_NE(text.find("# TYPE tandem_prompt_tokens_total counter"), std::string::npos);
  EXPECT_NE(text.find("tandem_prompt_tokens_total 7"), std::string::npos);
  EXPECT_NE(text.find("tandem_num_requests_running{worker=\"http://h:1\"} 4"), std::string::npos);
  EXPECT_NE(text.find("tandem_time_to_first_token_seconds_bucket{le=\"1\"} 1"), std::string::npos);
}

TEST(Metrics, ABadNameDetachesInsteadOfThrowing) {
  Metrics metrics;
  set_log_level(LogLevel::kOff);
  Counter bad = metrics.counter("not a name", "x");
  set_log_level(LogLevel::kInfo);
  bad.add();
  EXPECT_EQ(bad.value(), 0);
}

TEST(Metrics, AddsFromManyThreadsAreAllCounted) {
  Metrics metrics;
  Counter counter = metrics.counter("tandem_total", "x");
  Gauge gauge = metrics.gauge("tandem_load", "x");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 10000; ++j) {
        counter.add();
        gauge.add(j % 2 == 0 ? 1 : -1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 40000);
  EXPECT_EQ(gauge.value(), 0);
}

TEST(Log, LevelsFilterAndNamesParse) {
  EXPECT_TRUE(set_log_level("warning"));
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
  EXPECT_FALSE(set_log_level("loud"));
  EXPECT_EQ(log_level(), LogLevel::kWarning);
  set_log_level("info");
}

TEST(Log, ControlBytesCannotForgeALine) {
  testing::internal::CaptureStderr();
  set_log_name("100%d");
  log_info("a{}b", "\n\x1b[31m");
  set_log_name("");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("a\\x0a\\x1b[31mb"), std::string::npos) << text;
  EXPECT_NE(text.find("[100%d]"), std::string::npos) << text;
}

}  // namespace
}  // namespace tandem::observe
