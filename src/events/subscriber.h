// Subscriber: receives the messages of many publishers in order, each once, and says when what a
// publisher told no longer counts (a gap that cannot be filled, or a restart).
//
// One thread for all feeds; the handlers run on it. Everything that waits is bounded: messages per
// feed by the high-water mark (a slow reader loses messages, notices the gap and asks again), held
// ones by bytes, a message's size. All public functions from any thread, none waits, except the
// destructor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "events/stream_tracker.h"
#include "events/zmq_socket.h"

namespace tandem::events {

using FeedId = uint32_t;

struct Feed {
  std::string endpoint;         // of the PUB socket: "tcp://HOST:PORT"
  std::string replay_endpoint;  // empty: gaps cannot be filled
  std::string topic = {};       // only topics that begin like this
};

struct SubscriberOptions {
  int high_water = 20000;
  int64_t message_bytes = int64_t{64} << 20;
  size_t streams_per_feed = 64;  // topics; more are not heard
  TrackerOptions tracker = {};
};

class Subscriber {
 public:
  // Messages of different topics of one feed are numbered apart; `stream` tells them apart, 0 is
  // the first that was heard.
  struct Handlers {
    std::function<void(FeedId feed, uint32_t stream, std::string_view payload)> deliver;
    std::function<void(FeedId feed, uint32_t stream)> reset;
    std::function<void()> tick = {};  // at least four times a second, often more; may be empty
  };
  explicit Subscriber(Handlers handlers, SubscriberOptions options = {});
  ~Subscriber();

  // Connects and keeps connecting. An endpoint that cannot be parsed is told to the log's owner by
  // counts().errors only.
  FeedId add(Feed feed);
  void remove(FeedId feed);   // no deliveries after the reset that follows
  void restart(FeedId feed);  // its publisher is another process now
  // Runs `task` on this thread, between messages: for whoever shares its data with the handlers.
  // False: too many wait.
  bool post(std::function<void()> task);

  struct Counts {
    uint64_t messages = 0;
    uint64_t bytes = 0;
    uint64_t gaps = 0;
    uint64_t replayed = 0;
    uint64_t resets = 0;
    uint64_t errors = 0;  // messages that are none, and feeds that cannot be opened
    size_t feeds = 0;
    size_t held_bytes = 0;
  };
  Counts counts() const;

 private:
  struct Stream {
    explicit Stream(TrackerOptions options) : tracker(options) {}
    std::string topic;
    bool named = false;
    StreamTracker tracker;
  };
  struct Source {
    FeedId id = 0;
    Feed feed;
    std::unique_ptr<ZmqSocket> socket;
    std::unique_ptr<ZmqSocket> replay;
    std::vector<std::unique_ptr<Stream>> streams;
    StreamTracker::Counts counted;  // what counts_ has of its streams
  };

  void run();
  void open(FeedId id, Feed feed);
  void close(FeedId id);
  Status connect(Source& source);
  void read(Source& source, TimePoint now);
  void read_replay(Source& source, TimePoint now);
  Stream* stream_of(Source& source, const std::string& topic);
  void act(Source& source, uint32_t stream, const StreamTracker::Actions& actions);
  void count(Source& source);
  void command(std::function<void()> task);

  Handlers handlers_;
  SubscriberOptions options_;
  ZmqContext context_;
  WakeFd wake_;
  std::map<FeedId, std::unique_ptr<Source>> sources_;  // the thread's

  mutable std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  FeedId next_id_ = 0;
  bool stopping_ = false;
  Counts counts_;
  std::thread thread_;
};

}  // namespace tandem::events
