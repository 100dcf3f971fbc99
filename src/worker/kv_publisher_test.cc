#include "worker/kv_publisher.h"

#include <condition_variable>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "events/subscriber.h"
#include "protocol/content_id.h"

namespace tandem::worker {
namespace {

using protocol::ContentId;

constexpr Duration kLimit = std::chrono::seconds(20);

// Follows the events of a publisher: which blocks it tells to hold.
class Follower {
 public:
  explicit Follower(const KvPublisher& publisher)
      : subscriber_({[this](events::FeedId, uint32_t, std::string_view payload) { apply(payload); },
                     [this](events::FeedId, uint32_t) {
                       const std::lock_guard lock(mutex_);
                       held_.clear();
                     }}) {
    subscriber_.add({publisher.endpoint(), publisher.replay_endpoint()});
  }
  bool wait_for(const std::set<std::string>& names) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return heard_ && keys() == names; });
  }
  std::string salt_of(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return salts_[name];
  }
  int orphans() {
    const std::lock_guard lock(mutex_);
    return orphans_;
  }

 private:
  std::set<std::string> keys() const {
    std::set<std::string> out;
    for (const auto& [name, tokens] : held_) out.insert(name);
    return out;
  }
  void apply(std::string_view payload) {
    const auto batch = protocol::decode_kv_events(payload);
    ASSERT_TRUE(batch);
    const std::lock_guard lock(mutex_);
    heard_ = true;
    for (const auto& event : batch->events) {
      if (std::holds_alternative<protocol::AllBlocksCleared>(event)) held_.clear();
      if (const auto* removed = std::get_if<protocol::BlockRemoved>(&event)) {
        for (const auto& hash : removed->hashes) held_.erase(std::string(hash.bytes));
      }
      if (const auto* stored = std::get_if<protocol::BlockStored>(&event)) {
        if (stored->parent && !held_.contains(std::string(stored->parent->bytes))) ++orphans_;
        for (size_t i = 0; i < stored->hashes.size(); ++i) {
          const std::string name(stored->hashes[i].bytes);
          held_[name] = stored->tokens[i * static_cast<size_t>(stored->block_tokens)];
          if (!stored->extras.empty()) salts_[name] = stored->extras[i];
        }
      }
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool heard_ = false;
  int orphans_ = 0;
  std::map<std::string, int32_t> held_;
  std::map<std::string, std::string> salts_;
  events::Subscriber subscriber_;
};

std::string name_of(const ContentId& id) {
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

class KvPublisherTest : public ::testing::Test {
 protected:
  void open(size_t queue_bytes = size_t{1} << 20, size_t ring_bytes = size_t{1} << 20) {
    auto made = KvPublisher::create({.endpoint = "tcp://127.0.0.1:0",
                                     .replay_endpoint = {},
                                     .model = "m",
                                     .lineage = "l",
                                     .block_tokens = 4,
                                     .queue_bytes = queue_bytes,
                                     .ring_bytes = ring_bytes},
                                    metrics_);
    ASSERT_TRUE(made) << made.error().message;
    publisher = std::move(*made);
  }
  std::vector<ContentId> store(int seed, size_t blocks, const std::string& salt = {},
                               const std::string& adapter = {}) {
    const ContentId root = protocol::root_content_id("l", 4, salt);
    std::vector<ContentId> ids;
    ContentId parent = root;
    const std::vector<int32_t> tokens(4, seed);
    for (size_t i = 0; i < blocks; ++i) {
      const ContentId id = protocol::next_content_id(parent, tokens);
      publisher->stored({i == 0 ? nullptr : &parent, id, tokens, adapter, root});
      ids.push_back(parent = id);
    }
    return ids;
  }
  observe::Metrics metrics_;
  std::unique_ptr<KvPublisher> publisher;
};

TEST_F(KvPublisherTest, SubscribersHearWhatIsStoredAndRemovedEarlyOrLate) {
  open();
  Follower early(*publisher);
  const auto ids = store(1, 5);
  publisher->removed(ids[4]);
  publisher->removed(ids[3]);
  const std::set<std::string> left{name_of(ids[0]), name_of(ids[1]), name_of(ids[2])};
  EXPECT_TRUE(early.wait_for(left));
  Follower late(*publisher);
  EXPECT_TRUE(late.wait_for(left));
  EXPECT_EQ(early.orphans() + late.orphans(), 0);
}

TEST_F(KvPublisherTest, ALateSubscriberOfALongHistoryGetsASnapshotParentsFirst) {
  open(size_t{64} << 20, 3000);
  std::set<std::string> left;
  for (int i = 0; i < 50; ++i) {
    const auto ids = store(i, 40);
    for (size_t at = 20; at < 40; ++at) publisher->removed(ids[59 - at]);
    for (size_t at = 0; at < 20; ++at) left.insert(name_of(ids[at]));
  }
  Follower early(*publisher);
  ASSERT_TRUE(early.wait_for(left));
  Follower late(*publisher);
  EXPECT_TRUE(late.wait_for(left));
  EXPECT_EQ(late.orphans(), 0);
  const auto more = store(99, 2);
  for (const auto& id : more) left.insert(name_of(id));
  EXPECT_TRUE(late.wait_for(left));
}

TEST_F(KvPublisherTest, ASaltIsToldAsADigestAndAnAdapterByName) {
  open();
  Follower follower(*publisher);
  const auto salted = store(1, 2, "secret salt");
  ASSERT_TRUE(follower.wait_for({name_of(salted[0]), name_of(salted[1])}));
  EXPECT_EQ(follower.salt_of(name_of(salted[0])),
            protocol::extra_of_salt(protocol::root_content_id("l", 4, "secret salt").hex()));
  EXPECT_EQ(follower.salt_of(name_of(salted[1])), "");
}

TEST_F(KvPublisherTest, AFullQueueClearsAndGoesOnWithoutOrphans) {
  open(400);  // a block or two
  Follower follower(*publisher);
  std::vector<ContentId> last;
  for (int i = 0; i < 300; ++i) last = store(i, 10);
  const auto alone = store(1000, 1);
  // Whatever was lost, in the end nothing is told that has no parent, and news still come.
  const TimePoint until = std::chrono::steady_clock::now() + kLimit;
  while (metrics_.counter("tandem_kv_events_overflows", "").value() == 0 &&
         std::chrono::steady_clock::now() < until) {
    store(2000, 50);
  }
  EXPECT_GT(metrics_.counter("tandem_kv_events_overflows", "").value(), 0);
  EXPECT_EQ(follower.orphans(), 0);
}

TEST_F(KvPublisherTest, AnEndpointWithoutAPortNeedsASecondOne) {
  const auto made = KvPublisher::create(
      {.endpoint = "ipc:///nowhere/x", .replay_endpoint = {}, .model = {}, .lineage = {}},
      metrics_);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, "bad_endpoint");
}

}  // namespace
}  // namespace tandem::worker
