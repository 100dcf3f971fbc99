// Network: connections between nodes. In one direction of one connection frames arrive in order and
// whole, or not at all once it breaks; between connections nothing is in order. A partition holds
// frames back; after kSilence without a sign of life an end closes, as PeerConnection does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kv/handoff/send_handoff.h"
#include "protocol/handoff_frames.h"
#include "sim/event_loop.h"

namespace tandem::sim {

inline constexpr Duration kSilence = std::chrono::seconds(3);
inline constexpr Duration kDialTimeout = std::chrono::seconds(2);

// What happens at an end, told to the process that holds it: dropped when that process is gone,
// and late when it is frozen.
class Ends {
 public:
  virtual ~Ends() = default;
  // The start of the process that runs on `node` now; 0: none.
  virtual uint64_t start_of(int node) const = 0;
  virtual void tell(int node, uint64_t start, EventLoop::Action action) = 0;
  // At the dialed end: a HELLO. False refuses it.
  virtual bool on_hello(int node, kv::PeerId peer, int from, uint64_t start) = 0;
  // At the dialing end: the answer; start 0: it failed. False refuses it.
  virtual bool on_dialed(int node, kv::PeerId peer, int to, uint64_t start) = 0;
  virtual void on_frame(int node, kv::PeerId peer, protocol::HandoffFrame frame) = 0;
  virtual void on_closed(int node, kv::PeerId peer) = 0;
};

class Network {
 public:
  Network(EventLoop& loop, Random& random, Ends& ends, int nodes, Duration slowest);

  kv::PeerId dial(int from, int to);
  void send(kv::PeerId peer, int from, protocol::HandoffFrame frame);
  // `node`'s end closes now; the other end learns of it after what was sent before.
  void close(kv::PeerId peer, int node);
  bool is_open(kv::PeerId peer, int node) const;
  bool is_cut(int a, int b) const { return loop_.now() < link(a, b).cut_until; }

  void partition(int a, int b, Duration time);
  void slow(int a, int b, Duration time);
  void reset(int a, int b);
  // The process ends; `silent`: nobody is told, its peers notice the silence.
  void crash(int node, bool silent);
  void freeze(int node, Duration time);

 private:
  struct Connection {
    std::array<int, 2> nodes;          // the dialing end, the dialed end
    std::array<uint64_t, 2> starts{};  // of the processes that hold the ends
    std::array<bool, 2> open{};
    std::array<TimePoint, 2> arrived{};  // at that end: the last thing sent to it
    bool broken = false;                 // what is on its way is lost
    bool given_up = false;               // by the dialing end, before it was open
  };
  struct Link {
    TimePoint cut_until{};
    TimePoint slow_until{};
  };
  Link& link(int a, int b) {
    return links_[static_cast<size_t>(std::min(a, b) * nodes_ + std::max(a, b))];
  }
  const Link& link(int a, int b) const {
    return links_[static_cast<size_t>(std::min(a, b) * nodes_ + std::max(a, b))];
  }
  TimePoint arrival(Connection& connection, int end);
  void deliver(kv::PeerId peer, int end, EventLoop::Action action);
  void close_end(kv::PeerId peer, int end);
  void close_after_silence(kv::PeerId peer, int end);
  void answer_dial(kv::PeerId peer);

  EventLoop& loop_;
  Random& random_;
  Ends& ends_;
  int nodes_;
  Duration slowest_;
  std::vector<Link> links_;
  std::map<kv::PeerId, Connection> connections_;
  kv::PeerId next_ = 1;
};

}  // namespace tandem::sim
