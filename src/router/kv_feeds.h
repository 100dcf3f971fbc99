// KvFeeds: listens to what workers publish of their prefix caches and keeps PrefixHolders true.
//
// One thread for all workers; it reads, checks and applies events and tidies up, so the reactor
// only looks things up. All functions from any thread; none waits, except the destructor.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "events/subscriber.h"
#include "router/prefix/prefix_holders.h"

namespace tandem::router {

// Where a worker publishes. Rank r of several is at the ports plus r.
struct KvSource {
  std::string endpoint;         // empty: nowhere
  std::string replay_endpoint;  // empty: past events cannot be asked for
  int32_t ranks = 1;
  bool operator==(const KvSource&) const = default;
};

// "ENDPOINT" or "ENDPOINT,REPLAY_ENDPOINT". A publisher names the address that it binds: where that
// is any of its host's, `host` (of the worker's URL) is meant.
KvSource parse_kv_source(std::string_view text, const std::string& host);

class KvFeeds {
 public:
  // `holders` outlives it.
  explicit KvFeeds(PrefixHolders& holders);

  // The worker serves this model and publishes there. The same as before: nothing happens.
  void listen(uint32_t worker, const std::string& model, const KvSource& source);
  void restarted(uint32_t worker);  // another process: everything is forgotten and asked for again
  void forget(uint32_t worker);     // it is not a worker any more

  // What a request is expected to leave in a cache.
  struct Expected {
    PrefixHolders::Expectation id = 0;  // zero: nothing
    bool posted = false;                // some of it is made on this object's thread
  };
  // That rank of the worker was given this prompt, of which it is known to hold `held` blocks, and
  // is expected to hold it all until settle(). On this object's thread when there is much to do.
  // May be called for several kinds of one prompt.
  void sent(uint32_t worker, int32_t rank, const PromptKeys& prompt, size_t held,
            Expected& expected);
  // It was computed: its events tell so within `time`. Zero: it will not be. `expected` is nothing
  // then.
  void settle(Expected& expected, Duration time);
  // It has computed it, or got it, beyond `held`: its events tell so within a moment, or it is
  // believed.
  void holds(uint32_t worker, int32_t rank, const PromptKeys& prompt, size_t held);
  // Whether its events would tell that it holds the prompt.
  bool told_of(uint32_t worker, const PromptKeys& prompt) const;

  struct Counts {
    events::Subscriber::Counts feeds;
    uint64_t bad_batches = 0;
  };
  Counts counts() const;

 private:
  struct Listened {
    std::string model;
    KvSource source;
    std::vector<events::FeedId> feeds;
  };
  struct Source {
    uint32_t worker = 0;
    int32_t rank = 0;  // of batches that name none
  };
  void close(Listened& listened);
  void tend();
  bool other_kind(uint32_t worker, const PromptKeys& prompt) const;
  void deliver(events::FeedId feed, uint32_t stream, std::string_view payload);
  void reset(events::FeedId feed, uint32_t stream);

  PrefixHolders& holders_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Listened> listened_;            // by worker
  std::map<events::FeedId, Source> source_of_feed_;  // also of feeds that were removed just now
  uint64_t bad_batches_ = 0;
  TimePoint tended_{};             // the thread's
  events::Subscriber subscriber_;  // its thread ends first
};

}  // namespace tandem::router
