// The engine thread and the device of a node. Mirrors Engine::pump, make_job, deliver and
// serve_reserves (engine/engine.cc, engine_events.cc).
#include <algorithm>
#include <utility>

#include "protocol/page_window.h"
#include "sim/node.h"
#include "sim/router_model.h"
#include "sim/world.h"

namespace tandem::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

engine::SequenceSpec Node::spec_of(SequenceId id, const PlannedRequest& request) const {
  engine::SequenceSpec spec;
  spec.id = id;
  spec.prompt = request.prompt;
  spec.max_tokens = request.max_tokens;
  spec.tenant = request.salt;
  spec.scope = {.salt = request.salt, .adapter = request.adapter};
  spec.priority = request.priority;
  if (request.deadline > Duration{}) spec.deadline = world_.now() + request.deadline;
  return spec;
}

void Node::add_sequence(SequenceId id, LegName leg, const std::string& handoff) {
  const PlannedRequest& request = world_.plan().requests[static_cast<size_t>(leg.request)];
  engine::SequenceSpec spec = spec_of(id, request);
  spec.hold_after_first = !handoff.empty();
  generations_[id] = {std::make_shared<Running>(request), handoff, leg};
  if (!scheduler_->add(std::move(spec))) world_.violation("a sequence was refused");
  keep_ticking();
  pump();
}

void Node::pump() {
  while (true) {
    auto plan = scheduler_->next(world_.now());
    deliver_updates();
    if (!plan) break;
    auto pass = std::make_shared<Pass>();
    for (const auto& sequence : plan->sequences) {
      const auto at = generations_.find(sequence.sequence);
      pass->running.push_back(at == generations_.end() ? nullptr : at->second.running);
      pass->handoffs.push_back(at == generations_.end() ? "" : at->second.handoff);
      if (!pass->handoffs.back().empty()) tell_pages(at->second, sequence);
    }
    pass->plan = std::move(*plan);
    passes_.push_back(pass);
    run_device();
  }
  serve_reserves();
}

void Node::tell_pages(Generation& generation, const protocol::StepSequence& planned) {
  const auto tags = kv_->tags(planned.sequence).first(planned.pages.size());
  if (generation.told >= tags.size()) return;
  std::vector<kv::PageTag> fresh(tags.begin() + static_cast<std::ptrdiff_t>(generation.told),
                                 tags.end());
  generation.told = tags.size();
  post(kReactor, [this, id = generation.handoff, fresh = std::move(fresh)] {
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_pages(fresh, world_.now()));
  });
}

// --- the device
// -----------------------------------------------------------------------------------

void Node::run_device() {
  if (device_busy_ || passes_.empty()) return;
  device_busy_ = true;
  const auto pass = passes_.front();
  world_.loop().after(draw(microseconds(300), milliseconds(6)), [this, pass, start = start_] {
    tell(start, [this, pass] { run_layer(pass, 0); });
  });
}

void Node::run_layer(const std::shared_ptr<Pass>& pass, uint32_t layer) {
  for (size_t i = 0; i < pass->plan.sequences.size(); ++i) {
    if (pass->running[i] != nullptr) compute(pass->plan.sequences[i], *pass->running[i], layer);
  }
  for (size_t i = 0; i < pass->plan.sequences.size(); ++i) {
    const auto& planned = pass->plan.sequences[i];
    if (pass->running[i] == nullptr) continue;
    check_context(planned, *pass->running[i], layer);
    if (pass->handoffs[i].empty()) continue;
    const int32_t end = planned.first_position + static_cast<int32_t>(planned.tokens.size());
    post(kReactor, [this, id = pass->handoffs[i], layer, end] {
      if (const auto at = sending_.find(id); at != sending_.end()) {
        run_send(id,
                 at->second.handoff.on_progress(static_cast<int32_t>(layer), end, world_.now()));
      }
    });
  }
  if (layer + 1 == world_.layout().layers()) return finish_pass(pass);
  world_.loop().after(draw(microseconds(300), milliseconds(6)),
                      [this, pass, layer, start = start_] {
                        tell(start, [this, pass, layer] { run_layer(pass, layer + 1); });
                      });
}

void Node::compute(const protocol::StepSequence& planned, Running& running, uint32_t layer) {
  const Layout& layout = world_.layout();
  for (size_t i = 0; i < planned.tokens.size(); ++i) {
    const auto position = static_cast<size_t>(planned.first_position) + i;
    const int32_t token = planned.tokens[i];
    if (position >= running.content.size() ||
        (token != protocol::kPendingToken && token != running.content.tokens()[position]))
      return world_.violation("a row was planned with a token that is not the sequence's");
    const auto block = position / static_cast<size_t>(layout.block_tokens);
    const int32_t page = planned.pages[layout.entry(block, layer)];
    if (page < 0) return world_.violation("a row has no page to write to");
    const auto at = position % static_cast<size_t>(layout.block_tokens);
    arena_->page(page)[static_cast<size_t>(layout.offset(layer)) + at] =
        running.content.word(position, layer);
  }
}

void Node::check_context(const protocol::StepSequence& planned, const Running& running,
                         uint32_t layer) {
  const Layout& layout = world_.layout();
  const int32_t window = layout.windows[static_cast<size_t>(layout.layer_groups[layer])];
  const int32_t first = window == 0 ? 0 : std::max(planned.first_position - window + 1, 0);
  const int32_t end = planned.first_position + static_cast<int32_t>(planned.tokens.size());
  for (int32_t position = first; position < end; ++position) {
    const auto block = static_cast<size_t>(position / layout.block_tokens);
    const int32_t page = planned.pages[layout.entry(block, layer)];
    const auto at = static_cast<size_t>(layout.offset(layer) + position % layout.block_tokens);
    if (page >= 0 &&
        arena_->page(page)[at] == running.content.word(static_cast<size_t>(position), layer))
      continue;
    return world_.violation("wrong bytes: node " + std::to_string(id_) + ", sequence " +
                            std::to_string(planned.sequence) + " reads position " +
                            std::to_string(position) + ", layer " + std::to_string(layer) +
                            ", in page " + std::to_string(page));
  }
}

void Node::finish_pass(const std::shared_ptr<Pass>& pass) {
  protocol::StepOutcome outcome;
  outcome.step = pass->plan.step;
  for (size_t i = 0; i < pass->plan.sequences.size(); ++i) {
    const auto& planned = pass->plan.sequences[i];
    if (!planned.sample || pass->running[i] == nullptr) continue;
    Content& content = pass->running[i]->content;
    const auto end = static_cast<size_t>(planned.first_position) + planned.tokens.size();
    const int32_t token = content.next(end);
    if (content.size() == end) content.push(token);
    outcome.sampled.push_back({planned.sequence, token});
  }
  passes_.pop_front();
  device_busy_ = false;
  run_device();
  post(kEngine, [this, outcome = std::move(outcome)] {
    scheduler_->complete(outcome);
    deliver_updates();
    pump();
  });
}

// --- what becomes of sequences
// --------------------------------------------------------------------

void Node::deliver_updates() {
  for (const auto& update : scheduler_->take_updates()) deliver(update);
}

void Node::deliver(const engine::SequenceUpdate& update) {
  const auto found = generations_.find(update.id);
  if (found == generations_.end()) return;
  Generation& generation = found->second;
  const LegName leg = generation.leg;
  if (!generation.handoff.empty()) {
    post(kReactor, [this, id = generation.handoff, update] {
      const auto at = sending_.find(id);
      if (at == sending_.end()) return;
      kv::SendHandoff& handoff = at->second.handoff;
      const PlannedRequest& request =
          world_.plan().requests[static_cast<size_t>(at->second.leg.request)];
      if (update.error) {
        run_send(id, handoff.on_cancel(*update.error, world_.now()));
      } else if (update.token) {
        run_send(id, handoff.on_prefill_done({*update.token}, world_.now()));
      } else if (update.admitted_cached) {
        run_send(id, handoff.on_admitted(request.prompt, request.salt, request.adapter, {},
                                         *update.admitted_cached, world_.now()));
      }
    });
    if (update.error) generations_.erase(found);
    return;
  }
  if (update.token) {
    world_.router().say(id_, [this, leg, index = generation.given++, token = update.token->token] {
      world_.router().on_token(leg, index, token);
    });
  }
  if (update.error) {
    world_.router().say(
        id_, [this, leg, error = *update.error] { world_.router().on_failed(leg, error); });
  } else if (update.finish) {
    world_.router().say(
        id_, [this, leg, given = generation.given] { world_.router().on_finished(leg, given); });
  }
  if (update.error || update.finish) generations_.erase(found);
}

void Node::abort_sequence(SequenceId id) {
  generations_.erase(id);
  if (!scheduler_->finish(id)) scheduler_->release_held(id);
  pump();
}

void Node::serve_reserves() {
  for (auto& served : reserves_->serve(world_.now(), scheduler_->next_waiting_tokens())) {
    const auto key = reserve_keys_.extract(served.id).mapped();
    post(kReactor, [this, key, served = std::move(served)] { on_reserved(key, served); });
  }
}

void Node::abandon_received(SequenceId id, bool may_be_written) {
  reserve_keys_.erase(id);
  if (!reserves_->abandon(id)) kv_->receive_failed(id, may_be_written);
  // A worker that has lost this much is not ready any more and is restarted: exit is the fence.
  if (kv_->unfenced_pages() > kv_->page_count() / 8) {
    world_.loop().after({}, [this, start = start_] {
      if (start == start_) crash(false, milliseconds(300));
    });
  }
  pump();
}

void Node::start_received(SequenceId id, LegName leg, int32_t first_token, uint64_t key) {
  const PlannedRequest& request = world_.plan().requests[static_cast<size_t>(leg.request)];
  auto running = std::make_shared<Running>(request);
  // The whole prompt, as what follows will see it.
  protocol::StepSequence planned;
  planned.sequence = id;
  planned.first_position = static_cast<int32_t>(request.prompt.size());
  for (const kv::PageTag tag : kv_->tags(id)) planned.pages.push_back(tag.page);
  for (uint32_t layer = 0; layer < world_.layout().layers(); ++layer)
    check_context(planned, *running, layer);
  kv_->receive_done(id, request.prompt);
  post(kReactor, [this, key] {
    if (const auto at = receiving_.find(key); at != receiving_.end())
      run_receive(key, at->second.handoff.on_started());
  });
  running->content.push(first_token);
  generations_[id] = {std::move(running), "", leg};
  scheduler_->add_resident(spec_of(id, request), {.token = first_token});
  deliver_updates();
  pump();
}

// Whether rows of the pass write to the page or can see it.
bool Node::uses(const protocol::StepSequence& planned, int32_t page) const {
  const Layout& layout = world_.layout();
  for (size_t at = 0; at < planned.pages.size(); ++at) {
    if (planned.pages[at] != page) continue;
    const auto group = at % static_cast<size_t>(layout.groups);
    const auto block = static_cast<int64_t>(at / static_cast<size_t>(layout.groups));
    if (block >= protocol::first_live_block(layout.windows[group], planned.first_position,
                                            layout.block_tokens))
      return true;
  }
  return false;
}

// A page is given out: nobody may be using it.
void Node::on_allocate(int32_t page, uint64_t generation) {
  const auto complain = [&](const std::string& who) {
    world_.violation("node " + std::to_string(id_) + ": page " + std::to_string(page) +
                     " is given out while " + who);
  };
  arena_->generations[static_cast<size_t>(page)] = generation;
  for (const auto& pass : passes_) {
    for (const auto& planned : pass->plan.sequences) {
      if (uses(planned, page)) return complain("a pass uses it");
    }
  }
  for (const auto& copy : world_.copies()) {
    const auto names = [&](kv::PageTag tag) { return tag.page == page; };
    if (copy->into == arena_ && std::ranges::any_of(copy->target, names))
      return complain("a copy writes into it");
    if (copy->from == arena_ && std::ranges::any_of(copy->source, names) &&
        world_.network().is_open(copy->peer, id_))
      return complain("a connected peer reads it");
  }
}

}  // namespace tandem::sim
