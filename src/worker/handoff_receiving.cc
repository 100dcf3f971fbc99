// The decode half of HandoffService.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "observe/log.h"
#include "worker/handoff_service.h"

namespace tandem::worker {

using kv::PeerId;
using protocol::HandoffFrame;

std::shared_ptr<HandoffService::DecodeLeg> HandoffService::start_decode(
    protocol::GenerateRequest request, engine::EventSink sink) {
  auto leg = std::make_shared<DecodeLeg>();
  leg->sink_ = std::move(sink);
  reactor_.post([this, leg, request = std::move(request)]() mutable {
    if (leg->cancelled_) return;
    const uint64_t key = next_key_++;
    leg->key_ = key;
    const std::string address = request.handoff.prefill_address;
    kv::ReceiveHandoff handoff(request.handoff.handoff_id, request.handoff.attempt, shape_,
                               options_.timeouts);
    receiving_.emplace(
        key, Receiving{std::move(handoff), std::move(request), leg, address, 0, {}, false, {}, 0});
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
    const auto peer = std::ranges::find_if(
        peers_, [&](const auto& entry) { return entry.second.address == address; });
    if (peer != peers_.end()) {
      receiving_.at(key).peer = peer->first;
      begin_receive(key);
      return;
    }
    auto& waiting = dialing_[address];
    waiting.push_back(key);
    if (waiting.size() == 1) reactor_.spawn(dial(key, address));
  });
  return leg;
}

void HandoffService::cancel_decode(const std::shared_ptr<DecodeLeg>& leg) {
  leg->cancelled_ = true;
  if (const auto sequence = leg->sequence_.load()) engine_.abort(sequence);
  reactor_.post([this, leg] {
    const uint64_t key = leg->key_;
    if (const auto at = receiving_.find(key); at != receiving_.end()) {
      run_receive(key, at->second.handoff.on_cancel(
                           Error{499, "client_closed_request", "The client went away."}));
    }
  });
}

boost::asio::awaitable<void> HandoffService::dial(uint64_t /*key*/, std::string address) {
  // Whatever happens, those that wait are told.
  Result<std::shared_ptr<kv::PeerConnection>> connection =
      make_error(502, "connect_failed", "The prefill worker could not be dialed.");
  try {
    connection = co_await kv::dial_peer(reactor_, address, options_.peer);
  } catch (const std::exception& failed) {
    connection =
        make_error(502, "connect_failed",
                   std::string("The prefill worker could not be dialed: ") + failed.what() + ".");
  }
  PeerId peer = 0;
  if (connection) {
    peer = next_peer_++;
    if (auto adopted = adopt(peer, *connection, address); !adopted) {
      peer = 0;
      connection = tl::unexpected(std::move(adopted).error());
    }
  }
  const std::vector<uint64_t> waiting = std::exchange(dialing_[address], {});
  dialing_.erase(address);
  for (const uint64_t key : waiting) {
    const auto at = receiving_.find(key);
    if (at == receiving_.end()) continue;
    if (peer == 0) {
      run_receive(key, at->second.handoff.on_cancel(connection.error()));
    } else {
      at->second.peer = peer;
      begin_receive(key);
    }
  }
}

void HandoffService::begin_receive(uint64_t key) {
  Receiving& receiving = receiving_.at(key);
  if (const auto peer = peers_.find(receiving.peer); peer != peers_.end())
    receiving.handoff.set_source_page_bytes(peer->second.importer->arriving().page_bytes());
  run_receive(key, receiving.handoff.open(now()));
}

void HandoffService::on_receiver_frame(PeerId peer, const HandoffFrame& frame) {
  const auto dispatch = [&](const protocol::HandoffKey& key, auto&& handle) {
    for (auto& [id, receiving] : receiving_) {
      if (receiving.peer != peer || receiving.handoff.key().id != key.id ||
          receiving.handoff.key().attempt != key.attempt)
        continue;
      run_receive(id, handle(receiving.handoff));
      return true;
    }
    return false;
  };
  if (const auto* offer = std::get_if<protocol::OfferFrame>(&frame)) {
    dispatch(offer->key,
             [&](kv::ReceiveHandoff& handoff) { return handoff.on_offer(*offer, now()); });
  } else if (const auto* push = std::get_if<protocol::PushFrame>(&frame)) {
    dispatch(push->key, [&](kv::ReceiveHandoff& handoff) { return handoff.on_push(*push, now()); });
  } else if (const auto* commit = std::get_if<protocol::CommitFrame>(&frame)) {
    dispatch(commit->key,
             [&](kv::ReceiveHandoff& handoff) { return handoff.on_commit(*commit, now()); });
  } else if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame)) {
    if (!dispatch(abort->key,
                  [&](kv::ReceiveHandoff& handoff) { return handoff.on_abort(*abort); })) {
      send_to(peer, protocol::AbortAckFrame{
                        abort->key});  // it ended here already: nothing is being copied
    }
  }
}

void HandoffService::run_receive(uint64_t key, kv::ReceiveActions actions) {
  for (kv::ReceiveAction& action : actions) {
    const auto at = receiving_.find(key);
    if (at == receiving_.end()) return;
    Receiving& receiving = at->second;
    if (auto* send = std::get_if<kv::SendToPeer>(&action)) {
      if (auto* ack = std::get_if<protocol::AckFrame>(&send->frame))
        ack->link_rate = static_cast<uint64_t>(fetcher_->link_rate(receiving.peer));
      send_to(receiving.peer, send->frame);
    } else if (auto* pages = std::get_if<kv::ReservePages>(&action)) {
      reserve(key, *pages);
    } else if (auto* copies = std::get_if<kv::CopyPages>(&action)) {
      copy(key, *copies);
    } else if (std::holds_alternative<kv::StopCopies>(action)) {
      fetcher_->stop(key);
    } else if (auto* start = std::get_if<kv::StartSequence>(&action)) {
      start_sequence(key, *start);
    } else if (const auto* release = std::get_if<kv::ReleasePages>(&action)) {
      engine_.abandon_received(receiving.pages.id, release->may_be_written);
      if (release->may_be_written)  // all that was reserved for it
        count_unfenced(
            shape_.pages(receiving.pages.first_missing, shape_.blocks(receiving.tokens.size())));
    } else if (auto* finished = std::get_if<kv::ReceiveFinished>(&action)) {
      if (finished->error) {
        failed_.add();
        if (!receiving.leg->cancelled_)
          receiving.leg->sink_(protocol::ErrorEvent{*finished->error});
      } else {
        received_.add();
        received_bytes_.add(static_cast<double>(receiving.bytes));
      }
    }
  }
  if (const auto at = receiving_.find(key); at != receiving_.end() && at->second.handoff.idle()) {
    receiving_.erase(at);
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
  }
}

void HandoffService::reserve(uint64_t key, const kv::ReservePages& action) {
  Receiving& receiving = receiving_.at(key);
  if (action.salt != receiving.request.context.salt ||
      action.adapter != receiving.request.adapter ||
      (!receiving.request.prompt.empty() && receiving.request.prompt != action.tokens)) {
    run_receive(key, receiving.handoff.on_cancel(
                         Error{502, "handoff_protocol", "The offer is for another prompt."}));
    return;
  }
  receiving.tokens = action.tokens;
  receiving.pages.id = engine_.reserve(
      action.tokens, {.salt = action.salt, .adapter = action.adapter}, options_.timeouts.reserve,
      [this, key](std::optional<engine::Received> received) {
        reactor_.post([this, key, received = std::move(received)] {
          const auto at = receiving_.find(key);
          if (at == receiving_.end()) {
            if (received) engine_.abandon_received(received->id);
            return;
          }
          if (!received) {
            run_receive(key, at->second.handoff.on_no_room(Error{
                                 503, "kv_busy",
                                 "The decode worker has no memory for this prompt right now."}));
            return;
          }
          at->second.pages = *received;
          run_receive(key, at->second.handoff.on_reserved(received->first_missing, now()));
        });
      });
}

std::vector<engine::IntegrityReport::Fresh> HandoffService::received_pages(
    const Receiving& receiving) const {
  std::vector<engine::IntegrityReport::Fresh> fresh;
  if (receiving.digests.empty()) return fresh;
  const size_t blocks = shape_.blocks(receiving.tokens.size());
  const size_t whole = receiving.tokens.size() / static_cast<size_t>(shape_.block_tokens);
  const size_t groups = shape_.groups();
  for (size_t group = 0; group < groups; ++group) {
    for (size_t block = receiving.pages.first_missing[group]; block < whole; ++block) {
      auto& page = fresh.emplace_back();
      page.tag = receiving.pages.pages[block * groups + group];
      for (size_t layer = 0; layer < places_.size(); ++layer) {
        if (static_cast<size_t>(places_[layer].group) != group) continue;
        const auto slot = static_cast<size_t>(places_[layer].slot);
        if (page.digests.size() <= slot) page.digests.resize(slot + 1);
        page.digests[slot] = receiving.digests[layer * blocks + block];
      }
    }
  }
  return fresh;
}

void HandoffService::start_sequence(uint64_t key, const kv::StartSequence& action) {
  Receiving& receiving = receiving_.at(key);
  protocol::GenerateRequest request = std::move(receiving.request);
  auto proven = received_pages(receiving);
  request.prompt = std::move(receiving.tokens);
  const auto leg = receiving.leg;
  const engine::SequenceId sequence = receiving.pages.id;
  leg->sequence_ = sequence;
  engine_.start_received(sequence, std::move(request), action.first_tokens,
                         static_cast<int32_t>(action.cached_tokens), std::move(proven), leg->sink_,
                         [this, key] {
                           reactor_.post([this, key] {
                             if (const auto at = receiving_.find(key); at != receiving_.end()) {
                               run_receive(key, at->second.handoff.on_started());
                             }
                           });
                         });
  // Cancelled between the check in cancel_decode and the store above.
  if (leg->cancelled_) engine_.abort(sequence);
}

}  // namespace tandem::worker
