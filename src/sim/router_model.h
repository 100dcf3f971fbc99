// Router: clients and the router's side of their requests: the production Legs, a placement drawn
// at random, and links to the workers that carry a leg's messages in order. The router itself never
// fails here.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "router/legs/legs.h"
#include "sim/memory.h"
#include "sim/world.h"

namespace tandem::sim {

class Router {
 public:
  explicit Router(World& world);
  void start(int request);
  void client_leaves(int request);
  // From nodes, through say(): in order for each node.
  void on_prefill_done(LegName leg);
  void on_token(LegName leg, size_t index, int32_t token);
  void on_finished(LegName leg, size_t tokens);
  void on_failed(LegName leg, const Error& error);
  void on_node_down(int node, bool crashed);
  // Runs `action` here once a message from `node` has arrived.
  void say(int node, EventLoop::Action action);

  bool all_ended() const { return open_ == 0; }
  std::string open_requests() const;

 private:
  struct Request {
    int index = 0;
    router::Legs legs{};
    std::string handoff;
    int prefill_node = -1;
    int placements = 0;
    std::map<uint32_t, int> nodes;  // by serial of a leg in flight
    std::map<uint32_t, bool> is_prefill;
    std::vector<int32_t> given;
    Content content{""};
    TimePoint wake = TimePoint::max();
    bool ended = false;
  };
  void apply(Request& request, const router::Decisions& decisions);
  void act(Request& request, const router::Decision& decision);
  void dispatch(Request& request, const router::Decision& decision);
  void cancel(Request& request, uint32_t serial);
  void end(Request& request, const char* how, int Outcome::* counter);
  int choose(const Request& request, bool prefill) const;
  void arm(Request& request);
  void send(int node, LegName leg, EventLoop::Action action);
  void fail_leg(Request& request, uint32_t serial, router::LegFailure failure, const Error& error);

  World& world_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<TimePoint> to_node_;
  std::vector<TimePoint> from_node_;
  int open_ = 0;
};

}  // namespace tandem::sim
