#include "mock/kv_voice.h"

#include <condition_variable>
#include <map>

#include "events/subscriber.h"
#include "mock/mock_fixture.h"

namespace tandem::mock {
namespace {

// What a subscriber knows of one engine: block names to first tokens.
class Ear {
 public:
  explicit Ear(const std::string& told) {
    const size_t comma = told.find(',');
    subscriber_ = std::make_unique<events::Subscriber>(events::Subscriber::Handlers{
        [this](events::FeedId, uint32_t, std::string_view payload) { hear(payload); },
        [this](events::FeedId, uint32_t) {
          const std::lock_guard lock(mutex_);
          held_.clear();
        }});
    subscriber_->add({told.substr(0, comma), told.substr(comma + 1)});
  }
  bool wait_for(size_t blocks) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return heard_ > 0 && held_.size() == blocks; });
  }
  int orphans() {
    const std::lock_guard lock(mutex_);
    return orphans_;
  }

 private:
  void hear(std::string_view payload) {
    const auto batch = protocol::decode_kv_events(payload);
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->malformed + batch->unknown, 0U);
    const std::lock_guard lock(mutex_);
    ++heard_;
    for (const auto& event : batch->events) {
      if (std::holds_alternative<protocol::AllBlocksCleared>(event)) held_.clear();
      if (const auto* stored = std::get_if<protocol::BlockStored>(&event)) {
        if (stored->parent && !held_.contains(stored->parent->key())) ++orphans_;
        for (const auto& hash : stored->hashes) held_[hash.key()] = stored->tokens[0];
      }
      if (const auto* removed = std::get_if<protocol::BlockRemoved>(&event)) {
        for (const auto& hash : removed->hashes) held_.erase(hash.key());
      }
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int heard_ = 0;
  int orphans_ = 0;
  std::map<uint64_t, int32_t> held_;
  std::unique_ptr<events::Subscriber> subscriber_;
};

std::string ids(int from, int count) {
  std::string out = R"({"max_tokens":1,"prompt":[)";
  for (int i = 0; i < count; ++i) out += (i > 0 ? "," : "") + std::to_string(from + i);
  return out + "]}";
}

TEST_F(MockTest, TellsWhatItsCacheHoldsInEveryForm) {
  for (const Dialect dialect : {Dialect::kTandem, Dialect::kSglang, Dialect::kVllmNixl}) {
    for (const bool arrays : {false, true}) {
      const auto one = server(dialect, Role::kUnified,
                              {.kv_events = "tcp://127.0.0.1:0", .kv_event_arrays = arrays});
      Ear ear(one->kv_events());
      run([](MockTest* t, const MockServer& a) -> awaitable<void> {
        (void)co_await t->post(a, "/v1/completions", ids(1000, 64));
        (void)co_await t->post(a, "/v1/completions", ids(1000, 80));
      }(this, *one));
      EXPECT_TRUE(ear.wait_for(5)) << dialect_name(dialect);
      one->restart();
      EXPECT_TRUE(ear.wait_for(0)) << "another process";
      run([](MockTest* t, const MockServer& a) -> awaitable<void> {
        (void)co_await t->post(a, "/v1/completions", ids(5000, 32));
      }(this, *one));
      EXPECT_TRUE(ear.wait_for(2));
      EXPECT_EQ(ear.orphans(), 0);
    }
  }
}

TEST_F(MockTest, ASmallCacheForgetsLeavesFirst) {
  const auto one = server(Dialect::kVllmNixl, Role::kUnified,
                          {.cache_tokens = 160, .kv_events = "tcp://127.0.0.1:0"});
  Ear ear(one->kv_events());
  run([](MockTest* t, const MockServer& a) -> awaitable<void> {
    (void)co_await t->post(a, "/v1/completions", ids(0, 96));
    for (int i = 1; i < 6; ++i) (void)co_await t->post(a, "/v1/completions", ids(i * 1000, 96));
    (void)co_await t->post(a, "/v1/completions", ids(5000, 128));
  }(this, *one));
  EXPECT_TRUE(ear.wait_for(10));
  EXPECT_EQ(ear.orphans(), 0);
}

}  // namespace
}  // namespace tandem::mock
