#include "sim/router_model.h"

#include <algorithm>
#include <utility>

namespace tandem::sim {

using router::Decision;
using router::LegFailure;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Router::Router(World& world)
    : world_(world),
      to_node_(static_cast<size_t>(world.plan().nodes())),
      from_node_(static_cast<size_t>(world.plan().nodes())),
      open_(static_cast<int>(world.plan().requests.size())) {
  for (size_t i = 0; i < world.plan().requests.size(); ++i) {
    auto& request = requests_.emplace_back(std::make_unique<Request>());
    const PlannedRequest& planned = world.plan().requests[i];
    request->index = static_cast<int>(i);
    request->content = Content(planned.adapter, planned.salt);
    for (const int32_t token : planned.prompt) request->content.push(token);
  }
}

void Router::start(int index) {
  Request& request = *requests_[static_cast<size_t>(index)];
  world_.trace(-1, [&] { return "request " + std::to_string(index) + " arrives"; });
  const Duration deadline = world_.plan().requests[static_cast<size_t>(index)].deadline;
  if (deadline > Duration{}) {
    world_.loop().after(deadline, [this, &request] {
      if (!request.ended) apply(request, request.legs.deadline_passed());
    });
  }
  apply(request, request.legs.start());
}

void Router::client_leaves(int index) {
  Request& request = *requests_[static_cast<size_t>(index)];
  if (request.ended) return;
  world_.trace(-1, [&] { return "the client of request " + std::to_string(index) + " leaves"; });
  apply(request, request.legs.client_gone());
}

// --- links to nodes
// -------------------------------------------------------------------------------

void Router::say(int node, EventLoop::Action action) {
  TimePoint& last = from_node_[static_cast<size_t>(node)];
  last = std::max(last, world_.now() + world_.random().time(microseconds(20), milliseconds(2)));
  world_.loop().at(last, std::move(action));
}

void Router::send(int node, LegName leg, EventLoop::Action action) {
  TimePoint& last = to_node_[static_cast<size_t>(node)];
  last = std::max(last, world_.now() + world_.random().time(microseconds(20), milliseconds(2)));
  world_.loop().at(last, [this, node, leg, action = std::move(action)]() mutable {
    const uint64_t start = world_.node(node).start();
    if (start != 0) return world_.node(node).tell(start, std::move(action));
    on_failed(leg, Error{502, "connect_failed", "Nobody listens."});
  });
}

void Router::on_node_down(int node, bool crashed) {
  for (const auto& request : requests_) {
    if (request->ended) continue;
    std::vector<uint32_t> lost;
    for (const auto& [serial, on] : request->nodes) {
      if (on == node) lost.push_back(serial);
    }
    for (const uint32_t serial : lost) {
      if (request->ended) break;
      if (!crashed) cancel(*request, serial);  // the connection is closed
      fail_leg(*request, serial, LegFailure::kDied,
               Error{502, "worker_lost", "The worker went away."});
    }
  }
}

// --- what nodes say
// -------------------------------------------------------------------------------

void Router::on_prefill_done(LegName leg) {
  Request& request = *requests_[static_cast<size_t>(leg.request)];
  if (request.ended || request.nodes.erase(leg.serial) == 0) return;
  apply(request, request.legs.prefill_done(leg.serial));
}

void Router::on_token(LegName leg, size_t index, int32_t token) {
  Request& request = *requests_[static_cast<size_t>(leg.request)];
  if (request.ended || !request.legs.may_answer(leg.serial)) return;
  if (!request.legs.began())
    world_.moment(Moment::kFirstToken,
                  request.nodes.contains(leg.serial) ? request.nodes.at(leg.serial) : 0);
  apply(request, request.legs.answer_byte(leg.serial));
  if (request.ended) return;
  Content& content = request.content;
  if (index != request.given.size() || token != content.next(content.size())) {
    world_.violation("wrong bytes: request " + std::to_string(leg.request) + " was given token " +
                     std::to_string(token) + " as no. " + std::to_string(index) +
                     ", which its prompt does not dictate");
  }
  request.given.push_back(token);
  content.push(token);
}

void Router::on_finished(LegName leg, size_t tokens) {
  Request& request = *requests_[static_cast<size_t>(leg.request)];
  if (request.ended || !request.legs.may_answer(leg.serial)) return;
  request.nodes.erase(leg.serial);
  const auto wanted = world_.plan().requests[static_cast<size_t>(leg.request)].max_tokens;
  if (tokens != request.given.size() || request.given.size() != static_cast<size_t>(wanted))
    world_.violation("request " + std::to_string(leg.request) + " got " +
                     std::to_string(request.given.size()) + " tokens of " + std::to_string(wanted));
  apply(request, request.legs.answer_done(leg.serial));
}

void Router::on_failed(LegName leg, const Error& error) {
  Request& request = *requests_[static_cast<size_t>(leg.request)];
  if (request.ended) return;
  const LegFailure failure = error.status == 503                         ? LegFailure::kBusy
                             : error.status >= 400 && error.status < 500 ? LegFailure::kRefused
                                                                         : LegFailure::kFailed;
  fail_leg(request, leg.serial, failure, error);
}

void Router::fail_leg(Request& request, uint32_t serial, LegFailure failure, const Error& error) {
  if (request.nodes.erase(serial) == 0) return;
  apply(request, request.legs.failed(serial, failure, error, world_.now()));
}

// --- decisions
// ------------------------------------------------------------------------------------

void Router::apply(Request& request, const router::Decisions& decisions) {
  for (const Decision& decision : decisions) {
    if (!request.ended) act(request, decision);
  }
  if (!request.ended) arm(request);
}

void Router::arm(Request& request) {
  const TimePoint at = request.legs.wakes_at();
  if (at == TimePoint::max() || at == request.wake) return;
  request.wake = at;
  world_.loop().at(at, [this, &request, at] {
    if (request.ended || request.wake != at) return;
    request.wake = TimePoint::max();
    apply(request, request.legs.tick(world_.now()));
  });
}

// -1: nobody. A worker that failed before is taken again now and then, as one does that has been
// restarted.
int Router::choose(const Request& request, bool prefill) const {
  const Plan& plan = world_.plan();
  const PlannedRequest& planned = plan.requests[static_cast<size_t>(request.index)];
  const auto& wanted = prefill ? planned.prefills : planned.decodes;
  if (!wanted.empty())
    return wanted[std::min(wanted.size(), static_cast<size_t>(request.placements)) - 1];
  std::vector<int> candidates;
  for (int node = prefill ? 0 : plan.prefills; node < (prefill ? plan.prefills : plan.nodes());
       ++node) {
    const auto& excluded = request.legs.excluded();
    const bool failed =
        std::ranges::find(excluded, static_cast<router::WorkerId>(node)) != excluded.end();
    if (failed && !world_.random().chance(0.4)) continue;
    if (world_.node(node).answers(world_.now())) candidates.push_back(node);
  }
  if (candidates.empty()) return -1;
  return candidates[static_cast<size_t>(
      world_.random().pick(static_cast<int64_t>(candidates.size())))];
}

void Router::act(Request& request, const Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kPlaceAll: {
      ++request.placements;
      request.handoff =
          "h" + std::to_string(request.index) + "." + std::to_string(request.placements);
      const bool one = world_.plan().requests[static_cast<size_t>(request.index)].one_worker;
      request.prefill_node = one ? -1 : choose(request, true);
      const int answer = choose(request, false);
      if (answer < 0 || (!one && request.prefill_node < 0))
        return apply(request, request.legs.not_placed());
      router::Placement placement;
      placement.answer = static_cast<router::WorkerId>(answer);
      if (!one) placement.prefill = static_cast<router::WorkerId>(request.prefill_node);
      return apply(request, request.legs.placed(placement));
    }
    case Decision::Kind::kPlaceAnswer: {
      ++request.placements;
      const int answer = choose(request, false);
      if (answer < 0) return apply(request, request.legs.not_placed());
      return apply(request, request.legs.placed_answer(static_cast<router::WorkerId>(answer)));
    }
    case Decision::Kind::kDispatch:
      return dispatch(request, decision);
    case Decision::Kind::kCancel:
    case Decision::Kind::kDetach:
      return cancel(request, decision.serial);
    case Decision::Kind::kRelease:
    case Decision::Kind::kCharge:
      return;
    case Decision::Kind::kFinish:
      return end(request, "is complete", &Outcome::completed);
    case Decision::Kind::kAbandon:
      return end(request, "is abandoned", &Outcome::abandoned);
    case Decision::Kind::kRelay:
    case Decision::Kind::kAnswer:
    case Decision::Kind::kBreak:
      return end(request, decision.error.code.empty() ? "fails" : decision.error.code.c_str(),
                 &Outcome::failed);
  }
}

void Router::dispatch(Request& request, const Decision& decision) {
  const auto node = static_cast<int>(decision.worker);
  const LegName leg{request.index, decision.serial};
  request.nodes[decision.serial] = node;
  world_.trace(-1, [&] {
    return "request " + std::to_string(request.index) + " " + request.handoff + ": " +
           (decision.leg == router::Leg::kPrefill ? "prefill" : "answer") + " leg no. " +
           std::to_string(decision.serial) + ", attempt " + std::to_string(decision.attempt) +
           ", to node " + std::to_string(node);
  });
  Node& to = world_.node(node);
  if (decision.leg == router::Leg::kPrefill) {
    send(node, leg, [&to, leg, id = request.handoff] { to.start_prefill(leg, id); });
  } else if (request.prefill_node < 0) {
    send(node, leg, [&to, leg] { to.start_whole(leg); });
  } else {
    send(node, leg,
         [&to, leg, id = request.handoff, attempt = decision.attempt, from = request.prefill_node] {
           to.start_decode(leg, id, attempt, from);
         });
  }
}

void Router::cancel(Request& request, uint32_t serial) {
  const auto at = request.nodes.find(serial);
  if (at == request.nodes.end()) return;
  const int node = at->second;
  const LegName leg{request.index, serial};
  send(node, leg, [this, node, leg] {
    world_.node(node).cancel(leg, Error{499, "client_closed_request", "The client went away."});
  });
}

void Router::end(Request& request, const char* how, int Outcome::* counter) {
  world_.trace(-1, [&] { return "request " + std::to_string(request.index) + " " + how; });
  request.ended = true;
  ++(world_.outcome().*counter);
  --open_;
}

std::string Router::open_requests() const {
  std::string out;
  for (const auto& request : requests_) {
    if (!request->ended) out += (out.empty() ? "request " : ", ") + std::to_string(request->index);
  }
  return out;
}

}  // namespace tandem::sim
