// Rooms: where the two legs of a handoff meet at a prefill server, whatever the dialect calls it
// (bootstrap room, transfer id, remote request id, context request id). Decode takes what prefill
// put there, once.
//
// Whatever is opened ends in exactly one of taken, aborted and expired, and is counted: a router
// that loses a leg shows in `expired`, one that forgets to abort in `open`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/event.h"

namespace tandem::mock {

// What stands for the KV of a prompt. Decode's text depends on nothing else: had it been given
// another request's, its text would be another.
struct PromptFacts {
  uint64_t hash = 0;
  int64_t tokens = 0;
  int64_t cached = 0;
};

struct Room {
  enum class State : uint8_t { kComputing, kReady, kTaken, kAborted, kExpired };
  Room(net::Reactor& reactor, std::string name) : id(std::move(name)), changed(reactor) {}
  std::string id;
  State state = State::kComputing;
  PromptFacts facts;
  TimePoint expires = TimePoint::max();  // of a lease
  int32_t rank = 0;                      // the data-parallel rank that computes
  net::Event changed;                    // for prefill
};

class Rooms {
 public:
  struct Counts {
    int64_t open = 0;  // now
    int64_t opened = 0;
    int64_t taken = 0;
    int64_t aborted = 0;
    int64_t expired = 0;    // leases that ran out
    int64_t waiting = 0;    // decode requests that wait for a room now
    int64_t unclaimed = 0;  // decode requests that gave up waiting
  };

  explicit Rooms(net::Reactor& reactor) : reactor_(reactor), arrived_(reactor) {}

  // 409 when there is a room of that name.
  Result<std::shared_ptr<Room>> open(const std::string& id);
  void ready(Room& room, const PromptFacts& facts, TimePoint expires);
  void abort(Room& room);

  // A decode request's wait; it may come before prefill and after it. `rank`: the rank it was
  // told of; negative: any. Errors: 410 "aborted", 410 "expired", 409 "taken", 409 "wrong_rank",
  // 504 "no_partner".
  net::asio::awaitable<Result<PromptFacts>> take(std::string id, TimePoint until, int32_t rank,
                                                 std::shared_ptr<bool> gone);
  void expire(TimePoint now);
  void wake() { arrived_.notify(); }  // somebody who waits has left
  void clear();                       // the process was restarted: everything is lost
  const Counts& counts() const { return counts_; }

 private:
  struct Wait;
  void end(Room& room, Room::State state, int64_t& count);

  net::Reactor& reactor_;
  net::Event arrived_;
  std::map<std::string, std::shared_ptr<Room>> rooms_;
  Counts counts_;
};

}  // namespace tandem::mock
