// What the registry remembers of a worker's prompts is of its process.
#include "router/worker_registry.h"

#include <gtest/gtest.h>

#include "router/fake_worker.h"

namespace tandem::router {
namespace {

using net::asio::awaitable;
using namespace std::chrono_literals;

class RegistryTest : public testing::Test {
 protected:
  RegistryTest() {
    options_.secret = "s3cret";
    options_.poll_interval = 10ms;
    options_.warm_connections = 0;
  }

  void run(std::function<awaitable<void>()> body) {
    client_.emplace(reactor_);
    fake_.emplace(reactor_, WorkerRole::kUnified);
    registry_.emplace(reactor_, *client_, ledger_, options_,
                      WorkerRegistry::Events{
                          .down = {}, .new_epoch = [this](WorkerId) { ++epochs_; }, .learned = {}});
    net::run_until_done(reactor_, whole_test(std::move(body)));
  }

  awaitable<void> whole_test(std::function<awaitable<void>()> body) {
    const auto alive = std::make_shared<int>();
    const auto id = registry_->add(fake_->address());
    EXPECT_TRUE(id);
    registry_->start(alive);
    co_await until([&] { return registry_->up(0); });
    EXPECT_TRUE(registry_->up(0));
    const std::vector<uint64_t> blocks{1, 2, 3};
    registry_->touched(0, 0, blocks, 512);
    model_ = registry_->models()->all().front();
    EXPECT_EQ(recent(), 3 * 512);
    co_await body();
    registry_->stop();
    co_await until([&] { return alive.use_count() == 1; });
    fake_->kill();
  }

  awaitable<void> until(std::function<bool()> condition) {
    const TimePoint end = std::chrono::steady_clock::now() + 3s;
    while (!condition() && std::chrono::steady_clock::now() < end) co_await reactor_.sleep(5ms);
  }

  // Of the worker that serves the model; -1: nobody does.
  double recent() const {
    std::vector<WorkerSnapshot> all;
    registry_->snapshots(*model_, {}, 16, all);
    if (all.empty()) return -1;
    EXPECT_EQ(all[0].recent_tokens, all[0].reusable_tokens);
    return all[0].recent_tokens;
  }

  net::Reactor reactor_;
  std::optional<net::HttpClient> client_;
  std::optional<FakeWorker> fake_;
  LoadLedger ledger_;
  RegistryOptions options_;
  std::optional<WorkerRegistry> registry_;
  std::shared_ptr<const ServedModel> model_;
  int epochs_ = 0;
};

TEST_F(RegistryTest, ARestartedWorkerHasNoRecentTokens) {
  run([this]() -> awaitable<void> {
    fake_->epoch = "another";
    co_await until([&] { return epochs_ == 1 && registry_->up(0); });
    EXPECT_EQ(epochs_, 1);
    EXPECT_EQ(recent(), 0);
  });
}

TEST_F(RegistryTest, AMovedWorkerHasNoRecentTokens) {
  run([this]() -> awaitable<void> {
    const std::string url = registry_->url_text(0);
    registry_->move(0, url, *net::parse_url(url));
    EXPECT_EQ(recent(), 0);
    co_return;
  });
}

TEST_F(RegistryTest, ARemovedWorkerKeepsAndCountsNothing) {
  run([this]() -> awaitable<void> {
    registry_->remove(0);
    EXPECT_EQ(recent(), -1);
    const std::vector<uint64_t> blocks{1, 2, 3};
    registry_->touched(0, 0, blocks, 512);  // a leg that goes on there
    ServedModel nameless = *model_;         // what a removed worker seems to serve
    nameless.id.clear();
    std::vector<WorkerSnapshot> all;
    registry_->snapshots(nameless, {}, 16, all);
    EXPECT_EQ(all.size(), 1U);
    for (const WorkerSnapshot& removed : all) {
      EXPECT_FALSE(removed.available);
      EXPECT_EQ(removed.reusable_tokens, 0);
    }
    co_return;
  });
}

}  // namespace
}  // namespace tandem::router
