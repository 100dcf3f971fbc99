#include "sim/world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "sim/router_model.h"

namespace tandem::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
// All timeouts of a request that is placed four times, and then some.
constexpr Duration kLongest = seconds(1500);
}  // namespace

World::World(const Plan& plan, bool tracing)
    : plan_(plan),
      layout_(plan_),
      tracing_(tracing),
      random_(plan_.seed),
      network_(loop_, random_, *this, plan_.nodes(), plan_.slowest_link),
      moments_(static_cast<size_t>(Moment::kFirstToken) + 1, 0) {
  for (int id = 0; id < plan_.nodes(); ++id) nodes_.push_back(std::make_unique<Node>(*this, id));
  router_ = std::make_unique<Router>(*this);
}

World::~World() = default;

Outcome World::run() {
  for (size_t i = 0; i < plan_.requests.size(); ++i)
    loop_.after(plan_.requests[i].at, [this, i] { router_->start(static_cast<int>(i)); });
  for (const Fault& fault : plan_.faults) {
    if (fault.moment == Moment::kNever)
      loop_.after(fault.at, [this, &fault] { carry_out(fault, 0); });
  }
  const TimePoint end = now() + kLongest;
  uint64_t steps = 0;
  while (outcome_.violation.empty() && loop_.step(end)) {
    if (++steps % 32 == 0) {
      for (const auto& node : nodes_) node->check_counts();
    }
  }
  if (outcome_.violation.empty()) check_end();
  outcome_.events = loop_.executed();
  return std::move(outcome_);
}

void World::check_end() {
  if (!router_->all_ended()) return violation("did not end: " + router_->open_requests());
  for (size_t id = 0; id < nodes_.size(); ++id) {
    nodes_[id]->check_counts();
    if (const std::string why = nodes_[id]->unrest(); !why.empty())
      return violation("at the end node " + std::to_string(id) + " " + why);
  }
  if (!copies_.empty()) violation("at the end a copy is under way");
}

void World::violation(const std::string& what) {
  if (!outcome_.violation.empty()) return;
  outcome_.violation = what;
  trace(-1, [&] { return "VIOLATION: " + what; });
}

void World::add_trace(int node, const std::string& text) {
  char when[48];
  const auto time = std::chrono::duration_cast<std::chrono::microseconds>(now().time_since_epoch());
  std::snprintf(when, sizeof when, "%11.6f  ", static_cast<double>(time.count()) / 1e6);
  outcome_.trace.push_back(when + (node < 0 ? "" : "node " + std::to_string(node) + " ") + text);
}

void World::moment(Moment moment, int node) {
  const int count = ++moments_[static_cast<size_t>(moment)];
  for (const Fault& fault : plan_.faults) {
    if (fault.moment == moment && fault.nth == count)
      loop_.after({}, [this, &fault, node] { carry_out(fault, node); });
  }
}

void World::carry_out(const Fault& fault, int where) {
  const int at = fault.node == kThere ? where : fault.node;
  switch (fault.kind) {
    case Fault::Kind::kCrash:
      return node(at).crash(fault.silent, fault.time);
    case Fault::Kind::kFreeze:
      return node(at).freeze(fault.time);
    case Fault::Kind::kPartition:
      trace(at, [&] { return "and " + std::to_string(fault.other) + " are partitioned"; });
      return network_.partition(at, fault.other, fault.time);
    case Fault::Kind::kReset:
      trace(at, [&] { return "and " + std::to_string(fault.other) + " are disconnected"; });
      return network_.reset(at, fault.other);
    case Fault::Kind::kSlow:
      return network_.slow(at, fault.other, fault.time);
    case Fault::Kind::kAbort:
      return router_->client_leaves(fault.request);
    case Fault::Kind::kFailCopy:
      return node(at).fail_next_copy();
  }
}

// --- ends of connections
// --------------------------------------------------------------------------

uint64_t World::start_of(int id) const { return nodes_[static_cast<size_t>(id)]->start(); }

void World::tell(int id, uint64_t start, EventLoop::Action action) {
  node(id).tell(start, std::move(action));
}

bool World::on_hello(int id, kv::PeerId peer, int from, uint64_t start) {
  return node(id).on_hello(peer, from, start);
}

bool World::on_dialed(int id, kv::PeerId peer, int to, uint64_t start) {
  trace(id, [&] {
    return (start == 0 ? "cannot reach node " : "is connected to node ") + std::to_string(to) +
           ", connection " + std::to_string(peer);
  });
  return node(id).on_dialed(peer, to, start);
}

void World::on_closed(int id, kv::PeerId peer) { node(id).on_closed(peer); }

void World::on_frame(int id, kv::PeerId peer, protocol::HandoffFrame frame) {
  trace(id, [&] {
    static constexpr std::string_view kNames[] = {"HELLO",     "PROOF", "OPEN",   "OFFER", "GRANT",
                                                  "BUSY",      "PUSH",  "COMMIT", "ACK",   "ABORT",
                                                  "ABORT_ACK", "PING",  "RENEW"};
    std::string text =
        "gets " + std::string(kNames[frame.index()]) + " on connection " + std::to_string(peer);
    std::visit(
        [&](const auto& f) {
          if constexpr (requires { f.key; })
            text += " of " + f.key.id + " attempt " + std::to_string(f.key.attempt);
          if constexpr (requires { f.pages; })
            text += ": layer " + std::to_string(f.layer) + ", blocks " +
                    std::to_string(f.first_block) + " to " +
                    std::to_string(f.first_block + f.pages.size());
          if constexpr (requires { f.code; }) text += ": " + f.code;
        },
        frame);
    return text;
  });
  node(id).on_frame(peer, std::move(frame));
}

}  // namespace tandem::sim
