#include "cli/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// The supervisor starts its own program: here this test binary, which then plays a worker. What it
// does is in a file that the test writes: "ready", "hang" (never says that it is ready) or "fail".
TEST(Child, DISABLED_PlaysAWorker) {
  const char* folder = std::getenv("TANDEM_TEST_CHILD");
  ASSERT_NE(folder, nullptr);
  std::string act;
  std::ifstream(fs::path(folder) / "act") >> act;
  std::ifstream own("/proc/self/cmdline");
  std::string words((std::istreambuf_iterator<char>(own)), {});
  std::replace(words.begin(), words.end(), '\0', ' ');
  std::ofstream(fs::path(folder) / ("started-" + std::to_string(getpid())))
      << act << words.substr(words.find(" --port"));
  if (act == "fail") _exit(3);
  if (act == "ready") {
    const std::string line = "{\"port\":7,\"model\":\"m\"}\n";
    ASSERT_EQ(write(3, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    close(3);
  }
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : root_(fs::path(::testing::TempDir()) / ("sup-" + std::to_string(getpid()))) {
    fs::remove_all(root_);
  }
  ~SupervisorTest() override { fs::remove_all(root_); }

  ChildSpec child(const std::string& name, const std::string& act) {
    fs::create_directories(root_ / name);
    says(name, act);
    ChildSpec spec;
    spec.name = name;
    spec.words = {"--gtest_filter=Child.DISABLED_PlaysAWorker", "--gtest_also_run_disabled_tests",
                  "--gtest_brief=1"};
    spec.environment = {"TANDEM_TEST_CHILD=" + (root_ / name).string()};
    return spec;
  }
  void says(const std::string& name, const std::string& act) {
    std::ofstream(root_ / name / "act") << act;
  }
  // Pids of all that were ever started under this name, once there are `count`.
  std::vector<pid_t> started(const std::string& name, size_t count) const {
    std::vector<pid_t> pids;
    for (int i = 0; i < 500 && pids.size() < count; ++i) {
      pids.clear();
      for (const auto& entry : fs::directory_iterator(root_ / name)) {
        const std::string file = entry.path().filename();
        if (file.starts_with("started-")) pids.push_back(std::stoi(file.substr(8)));
      }
      if (pids.size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(pids.size(), count) << name;
    return pids;
  }

  fs::path root_;
};

bool gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

TEST_F(SupervisorTest, AChildThatDoesNotStartEndsTheOthersAtOnce) {
  pid_t waiting = 0;
  const auto before = std::chrono::steady_clock::now();
  {
    Supervisor supervisor({child("slow", "hang"), child("bad", "fail")});
    const auto ready = supervisor.start(std::chrono::seconds(30));
    ASSERT_FALSE(ready);
    EXPECT_NE(ready.error().message.find("bad"), std::string::npos);
    const auto pids = started("slow", 1);
    ASSERT_EQ(pids.size(), 1U);
    waiting = pids[0];
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10));
  EXPECT_TRUE(gone(waiting));
}

TEST_F(SupervisorTest, AnInterruptEndsTheStart) {
  Supervisor supervisor({child("slow", "hang")});
  auto ready = std::async(std::launch::async,
                          [&] { return supervisor.start(std::chrono::seconds(30)).has_value(); });
  (void)started("slow", 1);
  supervisor.interrupt();
  ASSERT_EQ(ready.wait_for(std::chrono::seconds(2)), std::future_status::ready);
  EXPECT_FALSE(ready.get());
}

TEST_F(SupervisorTest, AReplacementThatLoadsHidesNeitherAnotherDeathNorTheEnd) {
  Supervisor supervisor({child("a", "ready"), child("b", "ready")});
  const auto ready = supervisor.start(std::chrono::seconds(30));
  ASSERT_TRUE(ready) << ready.error().message;
  EXPECT_EQ((*ready)[1].port, 7);
  std::atomic<int> back = 0;
  supervisor.watch([&](size_t index, uint16_t /*port*/) { back += index == 1 ? 1 : 0; });
  const auto first = started("a", 1);
  const auto other = started("b", 1);
  ASSERT_EQ(first.size() + other.size(), 2U);
  says("a", "hang");
  kill(first[0], SIGKILL);
  ASSERT_EQ(started("a", 2).size(), 2U);
  kill(other[0], SIGKILL);
  EXPECT_EQ(started("b", 2).size(), 2U) << "it is started again although the other still loads";
  for (int i = 0; i < 300 && back == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(back, 1);
  const auto before = std::chrono::steady_clock::now();
  supervisor.stop(std::chrono::seconds(5));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  for (const char* name : {"a", "b"}) {
    for (const pid_t pid : started(name, 2)) EXPECT_TRUE(gone(pid)) << name;
  }
}

TEST_F(SupervisorTest, AChildThatCannotStartOnItsPortGetsAnother) {
  Supervisor supervisor({child("a", "ready")});
  ASSERT_TRUE(supervisor.start(std::chrono::seconds(30)));
  std::atomic<int> back = 0;
  supervisor.watch([&](size_t /*index*/, uint16_t /*port*/) { ++back; });
  const auto first = started("a", 1);
  says("a", "fail");
  kill(first.at(0), SIGKILL);
  started("a", 2);
  says("a", "ready");
  started("a", 3);
  for (int i = 0; i < 300 && back == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(back, 1);
  std::multiset<std::string> acts;
  for (const auto& entry : fs::directory_iterator(root_ / "a")) {
    std::string line;
    std::getline(std::ifstream(entry.path()), line);
    if (entry.path().filename() != "act") acts.insert(line);
  }
  EXPECT_EQ(acts.count("ready --port 0 "), 2U) << "the first start, and the one after the failure";
  EXPECT_EQ(acts.count("fail --port 7 "), 1U);
}

}  // namespace
}  // namespace tandem::cli
