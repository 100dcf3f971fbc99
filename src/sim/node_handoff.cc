// The reactor of a node. Mirrors HandoffService (worker/handoff_*.cc).
#include <algorithm>
#include <set>
#include <utility>

#include "sim/node.h"
#include "sim/router_model.h"
#include "sim/world.h"

namespace tandem::sim {

using kv::PeerId;
using protocol::HandoffFrame;
using std::chrono::seconds;

// --- legs
// -----------------------------------------------------------------------------------------

void Node::start_prefill(LegName leg, std::string handoff) {
  const SequenceId id = next_sequence_++;
  prefill_legs_[leg] = handoff;
  post(kEngine, [this, id, leg, handoff] { add_sequence(id, leg, handoff); });
  kv::SendFaults faults{
      .time_frees = world_.broken(Break::kTime),
      .ignore_nonce = world_.broken(Break::kNonce),
      .ignore_abort = world_.broken(Break::kReaders) || world_.broken(Break::kI1)};
  kv::SendHandoff send(handoff, world_.layout().shape(), {}, {}, world_.now(), faults);
  sending_.emplace(handoff, Sending{std::move(send), id, leg});
  ++world_.outcome().handoffs;
  keep_ticking();
  if (const auto early = early_.extract(handoff); !early.empty()) {
    const EarlyOpen open = early.mapped();
    if (peers_.contains(open.peer)) {
      run_send(handoff, sending_.at(handoff).handoff.on_open(
                            open.peer, open.attempt, world_.random().next() | 1, world_.now()));
    }
  }
}

void Node::start_whole(LegName leg) {
  const SequenceId id = next_sequence_++;
  whole_legs_[leg] = id;
  post(kEngine, [this, id, leg] { add_sequence(id, leg, ""); });
}

void Node::start_decode(LegName leg, std::string handoff, uint32_t attempt, int prefill_node) {
  auto decode = std::make_shared<DecodeLeg>();
  decode_legs_[leg] = decode;
  const uint64_t key = decode->key = next_key_++;
  kv::ReceiveHandoff receive(
      std::move(handoff), attempt, world_.layout().shape(), {}, {},
      {.release_while_copying = world_.broken(Break::kDrain) || world_.broken(Break::kI1),
       .accept_any_copy = world_.broken(Break::kCoverage)});
  receiving_.emplace(key, Receiving{std::move(receive), leg, prefill_node, 0, 0, {}, {}});
  keep_ticking();
  const auto peer = std::ranges::find_if(peers_, [&](const auto& entry) {
    return entry.second.dialed && entry.second.node == prefill_node;
  });
  if (peer != peers_.end()) {
    receiving_.at(key).peer = peer->first;
    begin_receive(key);
  } else if (!dialing_.contains(prefill_node)) {
    dialing_[prefill_node] = world_.network().dial(id_, prefill_node);
  }
}

void Node::cancel(LegName leg, const Error& error) {
  if (const auto prefill = prefill_legs_.find(leg); prefill != prefill_legs_.end()) {
    const std::string id = prefill->second;
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_cancel(error, world_.now()));
  }
  if (const auto whole = whole_legs_.find(leg); whole != whole_legs_.end())
    post(kEngine, [this, id = whole->second] { abort_sequence(id); });
  if (const auto decode = decode_legs_.find(leg); decode != decode_legs_.end()) {
    decode->second->cancelled = true;
    if (const SequenceId id = decode->second->sequence; id != 0)
      post(kEngine, [this, id] { abort_sequence(id); });
    const uint64_t key = decode->second->key;
    if (const auto at = receiving_.find(key); at != receiving_.end())
      run_receive(key, at->second.handoff.on_cancel(error));
  }
}

// --- peers
// ----------------------------------------------------------------------------------------

bool Node::adopt(PeerId peer, int node, uint64_t start, bool dialed) {
  const auto admission = registry_.on_hello(peer, "node" + std::to_string(node), start);
  for (const PeerId old : admission.fence) {
    ++world_.outcome().fenced;
    world_.network().close(old, id_);
  }
  if (!admission.accepted) return false;
  // Mapped only if that start still runs.
  const bool runs = world_.node(node).start() == start;
  peers_[peer] = Peer{node, start, dialed, runs ? world_.node(node).arena() : nullptr};
  return true;
}

bool Node::on_hello(PeerId peer, int from, uint64_t start) {
  return adopt(peer, from, start, false);
}

bool Node::on_dialed(PeerId peer, int to, uint64_t start) {
  const auto dialing = dialing_.find(to);
  if (dialing == dialing_.end() || dialing->second != peer) return false;
  dialing_.erase(dialing);
  const bool open = start != 0 && adopt(peer, to, start, true);
  std::vector<uint64_t> waiting;
  for (const auto& [key, receiving] : receiving_) {
    if (receiving.prefill_node == to && receiving.peer == 0 && !receiving.handoff.finished())
      waiting.push_back(key);
  }
  for (const uint64_t key : waiting) {
    const auto at = receiving_.find(key);
    if (at == receiving_.end()) continue;
    if (open) {
      at->second.peer = peer;
      begin_receive(key);
    } else {
      run_receive(key, at->second.handoff.on_cancel(Error{502, "connect_failed", "No answer."}));
    }
  }
  return open;
}

void Node::on_closed(PeerId peer) {
  if (peers_.erase(peer) == 0) return;
  world_.trace(id_, [&] { return "loses connection " + std::to_string(peer); });
  registry_.on_closed(peer);
  std::vector<std::string> sends;
  for (const auto& [id, sending] : sending_) sends.push_back(id);
  for (const auto& id : sends) {
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_peer_lost(peer, world_.now()));
  }
  std::vector<uint64_t> receives;
  for (const auto& [key, receiving] : receiving_) {
    if (receiving.peer == peer) receives.push_back(key);
  }
  for (const uint64_t key : receives) {
    if (const auto at = receiving_.find(key); at != receiving_.end())
      run_receive(key, at->second.handoff.on_peer_lost());
  }
}

void Node::on_frame(PeerId peer, HandoffFrame frame) {
  if (const auto* open = std::get_if<protocol::OpenFrame>(&frame)) {
    on_open(peer, *open);
  } else if (!on_sender_frame(peer, frame)) {
    on_receiver_frame(peer, frame);
  }
}

void Node::on_open(PeerId peer, const protocol::OpenFrame& frame) {
  world_.moment(Moment::kOpened, id_);
  const std::string& id = frame.key.id;
  if (const auto at = sending_.find(id); at != sending_.end()) {
    run_send(id, at->second.handoff.on_open(peer, frame.key.attempt, world_.random().next() | 1,
                                            world_.now()));
    return;
  }
  const auto refuse = [&](PeerId to, uint32_t attempt) {
    world_.network().send(to, id_,
                          protocol::AbortFrame{{id, attempt, 0}, 409, "handoff_superseded", ""});
  };
  if (const auto early = early_.find(id); early != early_.end()) {
    if (frame.key.attempt <= early->second.attempt) return refuse(peer, frame.key.attempt);
    refuse(early->second.peer, early->second.attempt);
  }
  early_[id] = EarlyOpen{peer, frame.key.attempt, world_.now() + seconds(10)};
  keep_ticking();
}

bool Node::on_sender_frame(PeerId peer, const HandoffFrame& frame) {
  const auto with = [&](const protocol::HandoffKey& key, auto&& handle) {
    if (const auto at = sending_.find(key.id); at != sending_.end())
      run_send(key.id, handle(at->second.handoff));
  };
  const TimePoint now = world_.now();
  if (const auto* grant = std::get_if<protocol::GrantFrame>(&frame)) {
    with(grant->key, [&](auto& handoff) { return handoff.on_grant(peer, *grant, now); });
  } else if (const auto* busy = std::get_if<protocol::BusyFrame>(&frame)) {
    with(busy->key, [&](auto& handoff) { return handoff.on_busy(peer, *busy, now); });
  } else if (const auto* renew = std::get_if<protocol::RenewFrame>(&frame)) {
    if (const auto at = sending_.find(renew->key.id); at != sending_.end())
      at->second.handoff.on_renew(peer, *renew, now);
  } else if (const auto* ack = std::get_if<protocol::AckFrame>(&frame)) {
    with(ack->key, [&](auto& handoff) { return handoff.on_ack(peer, *ack, now); });
  } else if (const auto* abort_ack = std::get_if<protocol::AbortAckFrame>(&frame)) {
    with(abort_ack->key,
         [&](auto& handoff) { return handoff.on_abort_ack(peer, *abort_ack, now); });
  } else if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame)) {
    const auto at = peers_.find(peer);
    if (at == peers_.end() || at->second.dialed) return false;
    if (sending_.contains(abort->key.id)) {
      with(abort->key, [&](auto& handoff) { return handoff.on_abort(peer, *abort, now); });
    } else {
      const auto early = early_.find(abort->key.id);
      if (early != early_.end() && early->second.peer == peer &&
          early->second.attempt == abort->key.attempt)
        early_.erase(early);
      world_.network().send(peer, id_, protocol::AbortAckFrame{abort->key});
    }
  } else {
    return false;
  }
  return true;
}

void Node::on_receiver_frame(PeerId peer, const HandoffFrame& frame) {
  const auto with = [&](const protocol::HandoffKey& key, auto&& handle) {
    const auto at = std::ranges::find_if(receiving_, [&](const auto& entry) {
      const auto& mine = entry.second.handoff.key();
      return entry.second.peer == peer && mine.id == key.id && mine.attempt == key.attempt;
    });
    if (at == receiving_.end()) return false;
    run_receive(at->first, handle(at->second.handoff));
    return true;
  };
  const TimePoint now = world_.now();
  if (const auto* offer = std::get_if<protocol::OfferFrame>(&frame)) {
    with(offer->key, [&](auto& handoff) { return handoff.on_offer(*offer, now); });
  } else if (const auto* push = std::get_if<protocol::PushFrame>(&frame)) {
    with(push->key, [&](auto& handoff) { return handoff.on_push(*push, now); });
  } else if (const auto* commit = std::get_if<protocol::CommitFrame>(&frame)) {
    with(commit->key, [&](auto& handoff) { return handoff.on_commit(*commit, now); });
  } else if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame)) {
    if (!with(abort->key, [&](auto& handoff) { return handoff.on_abort(*abort); }))
      world_.network().send(peer, id_, protocol::AbortAckFrame{abort->key});
  }
}

// --- sending
// --------------------------------------------------------------------------------------

void Node::run_send(const std::string& id, const kv::SendActions& actions) {
  for (const kv::SendAction& action : actions) {
    if (const auto* send = std::get_if<kv::SendFrame>(&action)) {
      const HandoffFrame& frame = send->frame;
      world_.network().send(send->peer, id_, frame);
      if (std::holds_alternative<protocol::OfferFrame>(frame)) world_.moment(Moment::kOffered, id_);
      if (std::holds_alternative<protocol::PushFrame>(frame)) world_.moment(Moment::kPushed, id_);
      if (std::holds_alternative<protocol::CommitFrame>(frame))
        world_.moment(Moment::kCommitted, id_);
      if (std::holds_alternative<protocol::AbortFrame>(frame)) world_.moment(Moment::kAborted, id_);
    } else if (const auto* acquire = std::get_if<kv::AcquireReaders>(&action)) {
      for (const kv::PageTag tag : acquire->pages) ++readers_[tag.generation];
      post(kEngine, [this, pages = acquire->pages] { kv_->add_readers(pages); });
    } else if (const auto* release = std::get_if<kv::ReleaseReaders>(&action)) {
      release_readers(release->pages);
    } else if (const auto* fence = std::get_if<kv::FencePeer>(&action)) {
      ++world_.outcome().fenced;
      world_.trace(id_, [&] { return "fences connection " + std::to_string(fence->peer); });
      world_.network().close(fence->peer, id_);
    } else if (const auto* finished = std::get_if<kv::SendFinished>(&action)) {
      Sending& sending = sending_.at(id);
      post(kEngine, [this, sequence = sending.sequence] { abort_sequence(sequence); });
      world_.router().say(id_, [this, leg = sending.leg, error = finished->error] {
        error ? world_.router().on_failed(leg, *error) : world_.router().on_prefill_done(leg);
      });
    }
  }
  if (const auto at = sending_.find(id); at != sending_.end() && at->second.handoff.idle())
    sending_.erase(at);
}

// No reader goes while a peer that is connected may copy: each handoff that copies a page has its
// own reader of it.
void Node::release_readers(const std::vector<kv::PageTag>& pages) {
  for (const kv::PageTag tag : pages) {
    const int left = --readers_[tag.generation];
    if (left == 0) readers_.erase(tag.generation);
    std::set<std::pair<PeerId, uint64_t>> copying;
    for (const auto& copy : world_.copies()) {
      if (copy->from == arena_ && world_.network().is_open(copy->peer, id_) &&
          std::ranges::find(copy->source, tag) != copy->source.end())
        copying.emplace(copy->peer, copy->key);
    }
    if (static_cast<int>(copying.size()) > left) {
      world_.violation("node " + std::to_string(id_) + ": the reader of page " +
                       std::to_string(tag.page) + " is dropped while a connected peer copies");
    }
  }
  post(kEngine, [this, pages] {
    kv_->drop_readers(pages);
    pump();
  });
}

// --- receiving
// ------------------------------------------------------------------------------------

void Node::begin_receive(uint64_t key) {
  run_receive(key, receiving_.at(key).handoff.open(world_.now()));
}

void Node::run_receive(uint64_t key, const kv::ReceiveActions& actions) {
  for (const kv::ReceiveAction& action : actions) {
    const auto at = receiving_.find(key);
    if (at == receiving_.end()) return;
    Receiving& receiving = at->second;
    if (const auto* send = std::get_if<kv::SendToPeer>(&action)) {
      if (receiving.peer != 0) world_.network().send(receiving.peer, id_, send->frame);
      if (std::holds_alternative<protocol::GrantFrame>(send->frame))
        world_.moment(Moment::kGranted, id_);
      if (std::holds_alternative<protocol::AckFrame>(send->frame))
        world_.moment(Moment::kAcked, id_);
      if (std::holds_alternative<protocol::AbortFrame>(send->frame))
        world_.moment(Moment::kAborted, id_);
    } else if (const auto* pages = std::get_if<kv::ReservePages>(&action)) {
      reserve(key, *pages);
    } else if (const auto* copies = std::get_if<kv::CopyPages>(&action)) {
      begin_copy(key, *copies);
    } else if (std::holds_alternative<kv::StopCopies>(action)) {
      for (const auto& copy : world_.copies()) {
        if (copy->into == arena_ && copy->key == key) copy->stopped = true;
      }
    } else if (const auto* start = std::get_if<kv::StartSequence>(&action)) {
      const auto decode = decode_legs_.at(receiving.leg);
      decode->sequence = receiving.sequence;
      world_.moment(Moment::kStarted, id_);
      post(kEngine, [this, id = receiving.sequence, leg = receiving.leg,
                     token = start->first_tokens.front().token,
                     key] { start_received(id, leg, token, key); });
    } else if (const auto* release = std::get_if<kv::ReleasePages>(&action)) {
      post(kEngine, [this, id = receiving.sequence, written = release->may_be_written] {
        abandon_received(id, written);
      });
    } else if (const auto* finished = std::get_if<kv::ReceiveFinished>(&action)) {
      finish_receive(receiving, finished->error);
    }
  }
  if (const auto at = receiving_.find(key); at != receiving_.end() && at->second.handoff.idle())
    receiving_.erase(at);
}

void Node::finish_receive(Receiving& receiving, const std::optional<Error>& error) {
  if (!error || decode_legs_.at(receiving.leg)->cancelled) return;
  world_.trace(id_,
               [&] { return "handoff " + receiving.handoff.key().id + " fails: " + error->code; });
  world_.router().say(
      id_, [this, leg = receiving.leg, error = *error] { world_.router().on_failed(leg, error); });
}

void Node::reserve(uint64_t key, const kv::ReservePages& action) {
  Receiving& receiving = receiving_.at(key);
  const PlannedRequest& request =
      world_.plan().requests[static_cast<size_t>(receiving.leg.request)];
  if (action.tokens != request.prompt || action.salt != request.salt ||
      action.adapter != request.adapter)
    return world_.violation("an offer is for another prompt");
  world_.moment(Moment::kReserving, id_);
  receiving.tokens = action.tokens;
  receiving.sequence = next_sequence_++;
  kv::ReserveQueue::Waiting waiting{receiving.sequence,
                                    action.tokens,
                                    {.salt = action.salt, .adapter = action.adapter},
                                    world_.now() + kv::HandoffTimeouts{}.reserve};
  post(kEngine, [this, key, waiting = std::move(waiting)] {
    reserve_keys_[waiting.id] = key;
    reserves_->add(waiting);
    keep_ticking();
    serve_reserves();
  });
}

void Node::on_reserved(uint64_t key, const kv::ReserveQueue::Served& served) {
  const auto at = receiving_.find(key);
  if (at == receiving_.end()) {
    if (served.reservation) post(kEngine, [this, id = served.id] { abandon_received(id, false); });
    return;
  }
  if (!served.reservation) {
    run_receive(key, at->second.handoff.on_no_room(Error{503, "kv_busy", "No memory."}));
    return;
  }
  at->second.pages = served.reservation->pages;
  run_receive(key, at->second.handoff.on_reserved(served.reservation->first_missing, world_.now()));
}

void Node::tick_handoffs(TimePoint now) {
  std::vector<std::string> sends;
  for (const auto& [id, sending] : sending_) sends.push_back(id);
  for (const auto& id : sends) {
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_time(now));
  }
  std::vector<uint64_t> receives;
  for (const auto& [key, receiving] : receiving_) receives.push_back(key);
  for (const uint64_t key : receives) {
    if (const auto at = receiving_.find(key); at != receiving_.end())
      run_receive(key, at->second.handoff.on_time(now));
  }
  for (auto at = early_.begin(); at != early_.end();) {
    if (now < at->second.until) {
      ++at;
      continue;
    }
    world_.network().send(
        at->second.peer, id_,
        protocol::AbortFrame{{at->first, at->second.attempt, 0}, 504, "handoff_timeout", ""});
    at = early_.erase(at);
  }
}

}  // namespace tandem::sim
