// World: one simulated deployment. Owns time, network, nodes and router; carries out the plan's
// faults; collects what the checks find.
//
// The checks, beside those inside the state machines:
//  * every word that a pass reads is what the sequence's own tokens dictate (Node::check_context),
//    and so is every word of a received block when its sequence starts;
//  * no page is given out while a pass uses it, a copy writes into it, or a connected peer reads
//  it;
//  * no reader is dropped while a connected peer copies;
//  * counts agree with the page tables;
//  * clients get exactly the tokens that their prompts dictate, one ending each, in bounded time;
//  * at the end nothing is held anywhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/network.h"
#include "sim/node.h"
#include "sim/plan.h"

namespace tandem::sim {

class Router;

struct Outcome {
  std::string violation;  // empty: all is well
  uint64_t events = 0;
  int completed = 0;  // requests that got all their tokens
  int failed = 0;     // that got an error
  int abandoned = 0;  // whose client left
  uint64_t handoffs = 0;
  uint64_t fenced = 0;
  std::vector<std::string> trace;  // when asked for
};

class World final : private Ends {
 public:
  World(const Plan& plan, bool tracing);
  ~World() override;
  Outcome run();

  // --- for nodes and router
  const Plan& plan() const { return plan_; }
  const Layout& layout() const { return layout_; }
  EventLoop& loop() { return loop_; }
  Random& random() { return random_; }
  Network& network() { return network_; }
  Router& router() { return *router_; }
  Node& node(int id) { return *nodes_[static_cast<size_t>(id)]; }
  std::vector<std::shared_ptr<Copy>>& copies() { return copies_; }
  TimePoint now() const { return loop_.now(); }
  bool broken(Break which) const { return plan_.broken == which; }
  void moment(Moment moment, int node);
  void violation(const std::string& what);
  template <typename Text>
  void trace(int node, Text&& text) {
    if (tracing_) add_trace(node, text());
  }
  Outcome& outcome() { return outcome_; }

 private:
  uint64_t start_of(int node) const override;
  void tell(int node, uint64_t start, EventLoop::Action action) override;
  bool on_hello(int node, kv::PeerId peer, int from, uint64_t start) override;
  bool on_dialed(int node, kv::PeerId peer, int to, uint64_t start) override;
  void on_frame(int node, kv::PeerId peer, protocol::HandoffFrame frame) override;
  void on_closed(int node, kv::PeerId peer) override;
  void carry_out(const Fault& fault, int where);
  void check_end();
  void add_trace(int node, const std::string& text);

  Plan plan_;
  Layout layout_;
  bool tracing_;
  EventLoop loop_;
  Random random_;
  Network network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Router> router_;
  std::vector<std::shared_ptr<Copy>> copies_;
  std::vector<int> moments_;  // how often each happened
  Outcome outcome_;
};

}  // namespace tandem::sim
