#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include <gtest/gtest.h>

#include "events/publisher.h"
#include "events/subscriber.h"

namespace tandem::events {
namespace {

constexpr Duration kLimit = std::chrono::seconds(20);

class Speaker {
 public:
  explicit Speaker(PublisherOptions options = {}) {
    if (options.endpoint.empty()) options.endpoint = "tcp://127.0.0.1:0";
    if (options.replay_endpoint.empty()) options.replay_endpoint = "tcp://127.0.0.1:0";
    auto made = Publisher::create(options, {[this] { return next(); }, [this] { return all(); }});
    EXPECT_TRUE(made) << made.error().message;
    publisher = std::move(*made);
  }
  void say(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(text);
    }
    publisher->wake();
  }
  Feed feed() const { return {publisher->endpoint(), publisher->replay_endpoint()}; }

  std::unique_ptr<Publisher> publisher;

 private:
  std::string next() {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return "";
    std::string text = queue_.front();
    queue_.pop_front();
    said_ += text;
    return text;
  }
  std::string all() {
    const std::lock_guard lock(mutex_);
    return "all:" + said_;
  }
  std::mutex mutex_;
  std::deque<std::string> queue_;
  std::string said_;
};

class Listener {
 public:
  Listener() {
    SubscriberOptions options;
    options.tracker.probe_interval = std::chrono::milliseconds(300);
    subscriber = std::make_unique<Subscriber>(
        Subscriber::Handlers{[this](FeedId feed, uint32_t, std::string_view payload) {
                               add(feed, std::string(payload));
                             },
                             [this](FeedId feed, uint32_t) { add(feed, "reset"); }},
        options);
  }
  ~Listener() { subscriber.reset(); }
  std::vector<std::string> heard(FeedId feed) {
    const std::lock_guard lock(mutex_);
    return heard_[feed];
  }
  bool wait_for(FeedId feed, const std::vector<std::string>& all) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return heard_[feed] == all; });
  }
  std::unique_ptr<Subscriber> subscriber;

 private:
  void add(FeedId feed, std::string text) {
    const std::lock_guard lock(mutex_);
    heard_[feed].push_back(std::move(text));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<FeedId, std::vector<std::string>> heard_;
};

TEST(Events, ALateSubscriberHearsEverythingInOrder) {
  Speaker speaker;
  for (const char* text : {"a", "b", "c"}) speaker.say(text);
  Listener listener;
  const FeedId feed = listener.subscriber->add(speaker.feed());
  EXPECT_TRUE(listener.wait_for(feed, {"a", "b", "c"}));
  speaker.say("d");
  EXPECT_TRUE(listener.wait_for(feed, {"a", "b", "c", "d"}));
  EXPECT_EQ(listener.subscriber->counts().resets, 0U);
}

TEST(Events, WhatTheRingForgotComesAsASnapshot) {
  PublisherOptions options;
  options.ring_bytes = 10;
  Speaker speaker(options);
  for (const char* text : {"aaaa", "bbbb", "cccc", "dddd"}) speaker.say(text);
  const TimePoint until = std::chrono::steady_clock::now() + kLimit;
  while (speaker.publisher->published() < 4 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_LE(speaker.publisher->ring_bytes(), 10U);
  Listener listener;
  const FeedId feed = listener.subscriber->add(speaker.feed());
  EXPECT_TRUE(listener.wait_for(feed, {"all:aaaabbbbccccdddd"}));
  speaker.say("e");
  EXPECT_TRUE(listener.wait_for(feed, {"all:aaaabbbbccccdddd", "e"}));
}

TEST(Events, ARestartedPublisherIsAnotherOne) {
  Listener listener;
  auto speaker = std::make_unique<Speaker>();
  const Feed feed = speaker->feed();
  const FeedId id = listener.subscriber->add(feed);
  speaker->say("a");
  speaker->say("b");
  ASSERT_TRUE(listener.wait_for(id, {"a", "b"}));
  speaker.reset();
  PublisherOptions again;
  again.endpoint = feed.endpoint;
  again.replay_endpoint = feed.replay_endpoint;
  speaker = std::make_unique<Speaker>(again);
  speaker->say("x");
  EXPECT_TRUE(listener.wait_for(id, {"a", "b", "reset", "x"}));
}

TEST(Events, AFeedThatIsRemovedIsReset) {
  Speaker one;
  Speaker two;
  Listener listener;
  const FeedId first = listener.subscriber->add(one.feed());
  const FeedId second = listener.subscriber->add(two.feed());
  one.say("1");
  two.say("2");
  ASSERT_TRUE(listener.wait_for(first, {"1"}));
  ASSERT_TRUE(listener.wait_for(second, {"2"}));
  listener.subscriber->remove(first);
  EXPECT_TRUE(listener.wait_for(first, {"1", "reset"}));
  one.say("1");
  two.say("3");
  EXPECT_TRUE(listener.wait_for(second, {"2", "3"}));
  EXPECT_EQ(listener.heard(first).size(), 2U);
  EXPECT_EQ(listener.subscriber->counts().feeds, 1U);
}

TEST(Events, ASlowListenerLosesNothingInTheEnd) {
  Speaker speaker;
  std::mutex mutex;
  std::condition_variable done;
  std::vector<std::string> heard;
  SubscriberOptions options;
  options.high_water = 10;
  options.tracker.probe_interval = std::chrono::milliseconds(200);
  Subscriber subscriber({[&](FeedId, uint32_t, std::string_view payload) {
                           if (heard.size() % 500 == 0)
                             std::this_thread::sleep_for(std::chrono::milliseconds(20));
                           const std::lock_guard lock(mutex);
                           heard.emplace_back(payload);
                           done.notify_all();
                         },
                         [&](FeedId, uint32_t) {
                           const std::lock_guard lock(mutex);
                           heard.clear();
                         }},
                        options);
  subscriber.add(speaker.feed());
  for (int i = 0; i < 5000; ++i) speaker.say(std::to_string(i));
  std::unique_lock lock(mutex);
  ASSERT_TRUE(
      done.wait_for(lock, kLimit, [&] { return !heard.empty() && heard.back() == "4999"; }));
  for (size_t i = 0; i < heard.size(); ++i)
    ASSERT_EQ(heard[heard.size() - 1 - i], std::to_string(4999 - i));
}

TEST(Events, EndpointsThatAreNoneAreErrors) {
  const auto made = Publisher::create({.endpoint = "nonsense", .replay_endpoint = ""},
                                      {[] { return std::string(); }, nullptr});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, "zeromq");
  Listener listener;
  listener.subscriber->add({"nonsense", ""});
  const TimePoint until = std::chrono::steady_clock::now() + kLimit;
  while (listener.subscriber->counts().errors == 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(listener.subscriber->counts().errors, 1U);
}

}  // namespace
}  // namespace tandem::events
