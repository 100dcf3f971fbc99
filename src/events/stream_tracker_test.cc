#include "events/stream_tracker.h"

#include <random>

#include <gtest/gtest.h>

namespace tandem::events {
namespace {

using Kind = StreamTracker::Action::Kind;

// What the owner sees: messages as text, "reset", and what was asked for.
class Watched {
 public:
  explicit Watched(TrackerOptions options = {}) : tracker(options) {}
  void see(const StreamTracker::Actions& actions) {
    for (const auto& action : actions) {
      if (action.kind == Kind::kDeliver) told += action.payload + " ";
      if (action.kind == Kind::kReset) told += "reset ";
      if (action.kind == Kind::kAsk) asked.push_back(action.sequence);
    }
  }
  void live(uint64_t sequence, const std::string& payload) {
    see(tracker.on_live(sequence, payload, now));
  }
  void replay(uint64_t sequence, const std::string& payload) {
    see(tracker.on_replay(sequence, payload, now));
  }
  void end() { see(tracker.on_replay_end(now)); }
  void connect() { see(tracker.on_connected(now)); }
  void pass(Duration time) {
    now += time;
    see(tracker.on_tick(now));
  }

  StreamTracker tracker;
  TimePoint now{};
  std::string told;
  std::vector<uint64_t> asked;
};

TEST(StreamTracker, AFirstConnectionAsksForEverythingAndHoldsWhatComesMeanwhile) {
  Watched all;
  all.connect();
  all.live(3, "d");
  all.replay(0, "a");
  all.replay(1, "b");
  all.replay(2, "c");
  all.replay(3, "d");
  all.end();
  all.live(4, "e");
  EXPECT_EQ(all.told, "a b c d e ");
  EXPECT_EQ(all.asked, (std::vector<uint64_t>{0}));
  EXPECT_EQ(all.tracker.held_bytes(), 0U);
}

TEST(StreamTracker, AGapIsAskedForAndFilledInOrder) {
  Watched all;
  all.live(0, "a");
  all.live(3, "d");
  all.live(4, "e");
  EXPECT_EQ(all.told, "a ");
  EXPECT_EQ(all.asked, (std::vector<uint64_t>{1}));
  for (const auto& [at, text] : {std::pair{1, "b"}, {2, "c"}, {3, "d"}}) all.replay(at, text);
  all.end();
  EXPECT_EQ(all.told, "a b c d e ");
  EXPECT_EQ(all.tracker.counts().resets, 0U);
}

TEST(StreamTracker, AGapThatNobodyCanFillIsAReset) {
  Watched all;
  all.live(0, "a");
  all.live(5, "f");
  all.end();
  EXPECT_EQ(all.told, "a reset f ");
  all.live(6, "g");
  EXPECT_EQ(all.told, "a reset f g ");
  Watched alone({.can_replay = false});
  alone.live(0, "a");
  alone.live(2, "c");
  EXPECT_EQ(alone.told, "a reset c ");
  EXPECT_TRUE(alone.asked.empty());
}

TEST(StreamTracker, AReplayThatDoesNotReachBackResetsOnce) {
  Watched all;
  all.live(0, "a");
  all.live(9, "j");
  all.replay(7, "h");
  all.replay(8, "i");
  all.replay(9, "j");
  all.end();
  EXPECT_EQ(all.told, "a reset h i j ");
}

TEST(StreamTracker, ASnapshotStandsForTheMessageWhoseNumberItBears) {
  Watched all;
  all.connect();
  all.live(7, "seven");  // came while the snapshot was made
  all.replay(7, "all");
  all.end();
  all.live(8, "eight");
  EXPECT_EQ(all.told, "all eight ");
  all.pass(TrackerOptions().probe_interval);
  all.replay(8, "eight");
  all.end();
  EXPECT_EQ(all.told, "all eight ");
  EXPECT_EQ(all.tracker.counts().resets, 0U);
}

TEST(StreamTracker, AHoleBetweenTheFirstReplayAndTheSubscriptionIsAskedForAgain) {
  Watched all;
  all.connect();
  all.live(4, "e");  // 2 and 3 were sent before the subscription worked and after the replay
  all.replay(0, "a");
  all.replay(1, "b");
  all.end();
  EXPECT_EQ(all.asked, (std::vector<uint64_t>{0, 2}));
  for (const auto& [at, text] : {std::pair{2, "c"}, {3, "d"}, {4, "e"}}) all.replay(at, text);
  all.end();
  EXPECT_EQ(all.told, "a b c d e ");
}

TEST(StreamTracker, ARepetitionIsDroppedButARestartIsNoticed) {
  Watched all;
  for (uint64_t i = 0; i < 5; ++i) all.live(i, "m" + std::to_string(i));
  all.live(3, "m3");
  EXPECT_EQ(all.tracker.counts().repeated, 1U);
  all.told.clear();
  all.live(0, "new");
  EXPECT_EQ(all.told, "reset new ");
  all.live(1, "newer");
  EXPECT_EQ(all.told, "reset new newer ");
  // One of which the beginning was missed.
  Watched late;
  for (uint64_t i = 0; i < 5; ++i) late.live(i, "m" + std::to_string(i));
  late.told.clear();
  late.live(2, "n2");
  EXPECT_EQ(late.asked, (std::vector<uint64_t>{0}));
  for (uint64_t i = 0; i < 3; ++i) late.replay(i, "n" + std::to_string(i));
  late.end();
  EXPECT_EQ(late.told, "reset n0 n1 n2 ");
}

TEST(StreamTracker, AReconnectionFindsTheSamePublisherOrAnother) {
  Watched same;
  same.connect();
  same.end();
  same.live(0, "a");
  same.live(1, "b");
  same.connect();
  EXPECT_EQ(same.asked.back(), 1U);
  same.replay(1, "b");
  same.replay(2, "c");
  same.end();
  EXPECT_EQ(same.told, "a b c ");

  Watched other;
  other.connect();
  other.end();
  other.live(0, "a");
  other.live(1, "b");
  other.connect();
  other.replay(1, "x");
  other.replay(2, "y");
  other.end();
  EXPECT_EQ(other.told, "a b reset ") << "from its beginning, not from there";
  EXPECT_EQ(other.asked.back(), 0U);
  other.replay(0, "w");
  other.replay(1, "x");
  other.end();
  EXPECT_EQ(other.told, "a b reset w x ");

  Watched empty;
  empty.connect();
  empty.end();
  empty.live(0, "a");
  empty.connect();
  empty.end();
  EXPECT_EQ(empty.told, "a reset ");
}

TEST(StreamTracker, SilenceIsFollowedUpAndDeafReplaysTimeOut) {
  TrackerOptions options;
  Watched all(options);
  all.connect();
  all.end();
  all.live(0, "a");
  all.pass(options.probe_interval);
  EXPECT_EQ(all.asked.back(), 0U);
  all.replay(0, "a");
  all.replay(1, "b");  // the last message before the silence, lost on its way
  all.end();
  EXPECT_EQ(all.told, "a b ");
  all.live(4, "e");
  all.pass(options.replay_timeout);
  EXPECT_EQ(all.told, "a b reset e ");
  EXPECT_FALSE(all.tracker.replaying());
}

TEST(StreamTracker, HeldMessagesAreBounded) {
  Watched all({.held_bytes = 1000});
  all.live(0, "a");
  for (uint64_t i = 2; i < 100; ++i) {
    all.live(i, std::string(100, 'x'));
    EXPECT_LE(all.tracker.held_bytes(), 1000U);
  }
  all.replay(1, "b");
  all.end();
  EXPECT_EQ(all.asked.back(), 2U) << "what was dropped is asked for";
}

// A publisher with a ring, a lossy way to it, restarts: in the end what was told since the last
// reset is what the publisher said, without a hole.
TEST(StreamTracker, RandomLossesAndRestartsNeverLeaveAHole) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    StreamTracker tracker({.held_bytes = 400, .remembered = 16});
    std::vector<std::string> said;
    size_t ring_from = 0;
    int incarnation = 0;
    std::vector<std::string> told;
    TimePoint now{};
    std::vector<uint64_t> asked;
    const auto see = [&](const StreamTracker::Actions& actions) {
      for (const auto& action : actions) {
        if (action.kind == Kind::kReset) told.clear();
        if (action.kind == Kind::kDeliver) told.push_back(action.payload);
        if (action.kind == Kind::kAsk) asked.push_back(action.sequence);
      }
    };
    const auto answer = [&] {
      while (!asked.empty()) {
        const uint64_t from = asked.front();
        asked.erase(asked.begin());
        for (size_t i = std::max<size_t>(from, ring_from); i < said.size(); ++i)
          see(tracker.on_replay(i, said[i], now));
        see(tracker.on_replay_end(now));
      }
    };
    see(tracker.on_connected(now));
    for (int step = 0; step < 300; ++step) {
      now += std::chrono::milliseconds(10);
      if (random() % 100 == 0) {
        said.clear();
        ring_from = 0;
        ++incarnation;
        if (random() % 2 == 0) see(tracker.on_connected(now));
      }
      said.push_back(std::to_string(incarnation) + "/" + std::to_string(said.size()));
      if (said.size() > 40) ring_from = said.size() - 40;
      if (random() % 5 != 0) see(tracker.on_live(said.size() - 1, said.back(), now));
      if (random() % 3 != 0) answer();
    }
    now += std::chrono::seconds(20);
    for (int i = 0; i < 4; ++i) {
      see(tracker.on_tick(now));
      answer();
      now += std::chrono::seconds(20);
    }
    ASSERT_FALSE(told.empty()) << seed;
    EXPECT_EQ(told.back(), said.back()) << seed;
    ASSERT_LE(told.size(), said.size()) << seed;
    for (size_t i = 0; i < told.size(); ++i)
      ASSERT_EQ(told[told.size() - 1 - i], said[said.size() - 1 - i]) << seed;
  }
}

}  // namespace
}  // namespace tandem::events
