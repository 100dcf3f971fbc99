#include "sim/network.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tandem::sim {

using kv::PeerId;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Network::Network(EventLoop& loop, Random& random, Ends& ends, int nodes, Duration slowest)
    : loop_(loop),
      random_(random),
      ends_(ends),
      nodes_(nodes),
      slowest_(slowest),
      links_(static_cast<size_t>(nodes * nodes)) {}

TimePoint Network::arrival(Connection& connection, int end) {
  const Link& between = link(connection.nodes[0], connection.nodes[1]);
  Duration delay = random_.time(microseconds(50), slowest_);
  if (loop_.now() < between.slow_until) delay *= 100;
  TimePoint& last = connection.arrived[static_cast<size_t>(end)];
  last = std::max({last, loop_.now() + delay, between.cut_until + delay});
  return last;
}

void Network::deliver(PeerId peer, int end, EventLoop::Action action) {
  Connection& connection = connections_.at(peer);
  loop_.at(arrival(connection, end), [this, peer, end, action = std::move(action)]() mutable {
    const Connection& at = connections_.at(peer);
    const auto e = static_cast<size_t>(end);
    // A process that is frozen finds in its socket what came meanwhile.
    ends_.tell(at.nodes[e], at.starts[e], [this, peer, e, action = std::move(action)] {
      const Connection& now = connections_.at(peer);
      if (now.open[e] && !now.broken) action();
    });
  });
}

PeerId Network::dial(int from, int to) {
  const PeerId peer = next_++;
  Connection& connection = connections_[peer];
  connection.nodes = {from, to};
  connection.starts[0] = ends_.start_of(from);
  const auto give_up = [this, peer] {
    Connection& at = connections_.at(peer);
    if (at.open[0] || at.given_up) return;
    at.given_up = true;
    ends_.on_dialed(at.nodes[0], peer, at.nodes[1], 0);
    close_end(peer, 1);
  };
  loop_.after(kDialTimeout, [this, peer, give_up] {
    const Connection& at = connections_.at(peer);
    ends_.tell(at.nodes[0], at.starts[0], give_up);
  });
  loop_.at(arrival(connection, 1), [this, peer, give_up] {
    Connection& at = connections_.at(peer);
    at.starts[1] = ends_.start_of(at.nodes[1]);
    if (at.starts[1] == 0) {  // nobody listens
      ends_.tell(at.nodes[0], at.starts[0], give_up);
      return;
    }
    ends_.tell(at.nodes[1], at.starts[1], [this, peer, give_up] {
      Connection& here = connections_.at(peer);
      if (here.given_up) return;
      here.open[1] = true;
      if (!ends_.on_hello(here.nodes[1], peer, here.nodes[0], here.starts[0])) {
        here.open[1] = false;
        ends_.tell(here.nodes[0], here.starts[0], give_up);
        return;
      }
      // Its sender may have died meanwhile.
      if (ends_.start_of(here.nodes[0]) != here.starts[0]) close_after_silence(peer, 1);
      answer_dial(peer);
    });
  });
  return peer;
}

void Network::answer_dial(PeerId peer) {
  loop_.at(arrival(connections_.at(peer), 0), [this, peer] {
    const Connection& at = connections_.at(peer);
    ends_.tell(at.nodes[0], at.starts[0], [this, peer] {
      Connection& here = connections_.at(peer);
      if (here.given_up || here.broken) return;
      here.open[0] = true;
      if (!ends_.on_dialed(here.nodes[0], peer, here.nodes[1], here.starts[1])) {
        here.open[0] = false;
        here.given_up = true;
        close_end(peer, 1);
      }
    });
  });
}

void Network::send(PeerId peer, int from, protocol::HandoffFrame frame) {
  const Connection& connection = connections_.at(peer);
  const int end = connection.nodes[0] == from ? 0 : 1;
  if (!connection.open[static_cast<size_t>(end)]) return;
  const int to = connection.nodes[static_cast<size_t>(1 - end)];
  // Shared, because an action can be copied.
  auto held = std::make_shared<protocol::HandoffFrame>(std::move(frame));
  deliver(peer, 1 - end, [this, peer, to, held] { ends_.on_frame(to, peer, std::move(*held)); });
}

bool Network::is_open(PeerId peer, int node) const {
  const auto at = connections_.find(peer);
  if (at == connections_.end()) return false;
  return at->second.open[at->second.nodes[0] == node ? 0 : 1];
}

// That end is told on its own thread; for the other it is the last thing on the wire.
void Network::close_end(PeerId peer, int end) {
  Connection& connection = connections_.at(peer);
  const auto e = static_cast<size_t>(end);
  if (!connection.open[e]) return;
  connection.open[e] = false;
  ends_.tell(connection.nodes[e], connection.starts[e],
             [this, peer, node = connection.nodes[e]] { ends_.on_closed(node, peer); });
}

void Network::close(PeerId peer, int node) {
  const Connection& connection = connections_.at(peer);
  const int end = connection.nodes[0] == node ? 0 : 1;
  if (!connection.open[static_cast<size_t>(end)]) return;
  deliver(peer, 1 - end, [this, peer, end] { close_end(peer, 1 - end); });
  close_end(peer, end);
}

void Network::close_after_silence(PeerId peer, int end) {
  loop_.after(kSilence + random_.time({}, milliseconds(500)), [this, peer, end] {
    const Connection& at = connections_.at(peer);
    const auto e = static_cast<size_t>(end);
    ends_.tell(at.nodes[e], at.starts[e], [this, peer, node = at.nodes[e]] { close(peer, node); });
  });
}

void Network::partition(int a, int b, Duration time) {
  if (a == b) return;
  link(a, b).cut_until = std::max(link(a, b).cut_until, loop_.now() + time);
  if (time <= kSilence) return;
  for (const auto& [peer, connection] : connections_) {
    if (std::min(a, b) != std::min(connection.nodes[0], connection.nodes[1]) ||
        std::max(a, b) != std::max(connection.nodes[0], connection.nodes[1]))
      continue;
    for (const int end : {0, 1}) close_after_silence(peer, end);
  }
}

void Network::slow(int a, int b, Duration time) {
  link(a, b).slow_until = std::max(link(a, b).slow_until, loop_.now() + time);
}

void Network::reset(int a, int b) {
  for (auto& [peer, connection] : connections_) {
    const bool between = (connection.nodes[0] == a && connection.nodes[1] == b) ||
                         (connection.nodes[0] == b && connection.nodes[1] == a);
    if (!between || connection.broken) continue;
    connection.broken = true;
    connection.given_up |= !connection.open[0];
    for (const int end : {0, 1}) {
      loop_.after(random_.time({}, milliseconds(5)), [this, peer, end] {
        const Connection& at = connections_.at(peer);
        const auto e = static_cast<size_t>(end);
        ends_.tell(at.nodes[e], at.starts[e], [this, peer, end] { close_end(peer, end); });
      });
    }
    if (!connection.open[0]) {
      ends_.tell(connection.nodes[0], connection.starts[0],
                 [this, peer, from = connection.nodes[0], to = connection.nodes[1]] {
                   ends_.on_dialed(from, peer, to, 0);
                 });
    }
  }
}

void Network::crash(int node, bool silent) {
  for (auto& [peer, connection] : connections_) {
    for (const int end : {0, 1}) {
      const auto e = static_cast<size_t>(end);
      if (connection.nodes[e] != node) continue;
      connection.open[e] = false;
      if (!connection.open[1 - e]) continue;
      if (silent) {
        close_after_silence(peer, 1 - end);
      } else {
        deliver(peer, 1 - end, [this, peer, end] { close_end(peer, 1 - end); });
      }
    }
  }
}

void Network::freeze(int node, Duration time) {
  if (time <= kSilence) return;
  for (const auto& [peer, connection] : connections_) {
    if (connection.nodes[0] == node) close_after_silence(peer, 1);
    if (connection.nodes[1] == node) close_after_silence(peer, 0);
  }
}

}  // namespace tandem::sim
