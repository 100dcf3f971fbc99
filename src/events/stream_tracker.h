// StreamTracker: what a subscriber does about one publisher's numbered messages: in order, once,
// and without a hole; or it says that what was told before no longer counts.
//
// Pure: messages and times in, actions out. The owner does the actions in their order.
//
//  * A first connection asks for everything from 0; a publisher that has a snapshot answers with
//  it.
//  * A gap asks for what is missing; live messages wait meanwhile, within a byte bound.
//  * A gap that cannot be filled is a reset: start again from what is there.
//  * A number that was seen before with the same bytes is a repetition; with other bytes, or one
//    older than what is remembered, the publisher was restarted: reset, and everything from 0.
//  * After a reconnection, and when nothing came for a while, the last message is asked for again:
//    if it is not the same, the publisher is another.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tandem::events {

struct TrackerOptions {
  bool can_replay = true;  // the publisher has a socket for it
  size_t held_bytes = size_t{32} << 20;
  size_t remembered = 4096;  // digests of past messages
  Duration replay_timeout = std::chrono::seconds(5);
  Duration probe_interval = std::chrono::seconds(5);
};

class StreamTracker {
 public:
  struct Action {
    enum class Kind : uint8_t {
      kDeliver,  // `payload`
      kReset,    // whatever was delivered is void
      kAsk,      // messages from `sequence` on; the reply ends with on_replay_end()
    };
    Kind kind;
    uint64_t sequence = 0;
    std::string payload = {};
  };
  using Actions = std::vector<Action>;

  explicit StreamTracker(TrackerOptions options = {}) : options_(options) {}

  Actions on_connected(TimePoint now);
  Actions on_live(uint64_t sequence, std::string payload, TimePoint now);
  Actions on_replay(uint64_t sequence, std::string payload, TimePoint now);
  Actions on_replay_end(TimePoint now);
  Actions on_tick(TimePoint now);
  // The owner knows that the publisher is another one now.
  Actions on_restart(TimePoint now);

  struct Counts {
    uint64_t delivered = 0;
    uint64_t gaps = 0;
    uint64_t replayed = 0;
    uint64_t repeated = 0;
    uint64_t resets = 0;
  };
  const Counts& counts() const { return counts_; }
  std::optional<uint64_t> expected() const { return expected_; }
  bool replaying() const { return replaying_; }
  size_t held_bytes() const { return held_bytes_; }

 private:
  struct Held {
    uint64_t sequence;
    std::string payload;
  };
  void ask(uint64_t from, bool verify, TimePoint now, Actions& out);
  void ask_all(TimePoint now, Actions& out);
  void probe(TimePoint now, Actions& out);
  void reset(Actions& out);
  void deliver(uint64_t sequence, std::string payload, Actions& out, bool snapshot = false);
  void take(uint64_t sequence, std::string payload, bool fill, TimePoint now, Actions& out);
  void drain(TimePoint now, Actions& out);
  bool same_as_before(uint64_t sequence, std::string_view payload) const;

  TrackerOptions options_;
  std::optional<uint64_t> expected_;
  std::optional<uint64_t> expected_when_asked_;
  std::deque<uint64_t> digests_;  // of the messages before expected_, oldest first
  std::deque<Held> held_;
  size_t held_bytes_ = 0;
  bool replaying_ = false;
  bool verifying_ = false;  // the reply's first message must be the last that was delivered
  bool ignoring_ = false;   // the rest of the reply is void; everything is asked for after it
  bool connected_before_ = false;
  TimePoint waits_since_{};
  TimePoint heard_{};
  Counts counts_;
};

}  // namespace tandem::events
