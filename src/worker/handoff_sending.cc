// The prefill half of HandoffService.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "numerics/hmac.h"
#include "observe/log.h"
#include "worker/handoff_service.h"

namespace tandem::worker {

using kv::PeerId;
using protocol::HandoffFrame;

namespace {

constexpr size_t kMaxEarlyOpens = 4096;

uint64_t random_nonce() {
  const std::string bytes = numerics::random_bytes(sizeof(uint64_t));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value | 1;  // 0 means "not offered yet"
}

}  // namespace

void HandoffService::start_prefill(protocol::GenerateRequest request,
                                   std::function<void(Result<PrefillReport>)> done) {
  reactor_.post([this, request = std::move(request), done = std::move(done)]() mutable {
    const std::string id = request.handoff.handoff_id;
    if (sending_.contains(id)) {
      done(make_error(409, "handoff_exists",
                      "A prefill leg with this handoff id is running already."));
      return;
    }
    PrefillReport report;
    report.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    auto prompt = std::make_shared<protocol::GenerateRequest>(request);
    auto sequence =
        engine_.prefill(std::move(request), [this, id, prompt](engine::PrefillEvent event) {
          reactor_.post([this, id, prompt, event = std::move(event)]() mutable {
            const auto at = sending_.find(id);
            if (at == sending_.end()) return;
            if (auto* admitted = std::get_if<engine::PrefillAdmitted>(&event)) {
              at->second.report.cached_tokens = admitted->cached_tokens;
              run_send(id, at->second.handoff.on_admitted(prompt->prompt, prompt->context.salt,
                                                          prompt->adapter, {},
                                                          admitted->cached_tokens, now()));
            } else {
              on_prefill_event(id, std::move(event));
            }
          });
        });
    if (!sequence) {
      remember_end(id, sequence.error());
      done(tl::unexpected(sequence.error()));
      return;
    }
    ended_.forget(id);
    kv::SendHandoff handoff(id, shape_, timeouts_for(report.prompt_tokens), estimate(), now());
    sending_.emplace(id, Sending{std::move(handoff), *sequence, std::move(done), report, now()});
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
    if (const auto early = early_.find(id); early != early_.end()) {
      const EarlyOpen open = early->second;
      early_.erase(early);
      if (peers_.contains(open.peer)) {
        run_send(id, sending_.at(id).handoff.on_open(open.peer, open.attempt, random_nonce(), now(),
                                                     travelling_page_bytes(open.peer)));
      }
    }
  });
}

// A prompt that was cached as a whole is committed before its first byte has moved, and an abort is
// acknowledged when the copies under way have ended: both take what the link takes.
kv::HandoffTimeouts HandoffService::timeouts_for(int32_t prompt_tokens) const {
  kv::HandoffTimeouts timeouts = options_.timeouts;
  if (link_rate_ <= 0) return timeouts;
  const uint64_t pages =
      uint64_t{shape_.blocks(static_cast<size_t>(prompt_tokens))} * shape_.groups();
  const double all = static_cast<double>(pages * shape_.page_bytes);
  const auto under_way =
      static_cast<double>(options_.fetch.batch_bytes * options_.fetch.batches_per_peer);
  // A peer said the rate: whatever it says, no wait becomes endless.
  constexpr double kLongest = 600;
  timeouts.ack += from_seconds(std::min(2 * all / link_rate_, kLongest));
  timeouts.drain += from_seconds(std::min(2 * std::min(all, under_way) / link_rate_, kLongest));
  return timeouts;
}

void HandoffService::cancel_prefill(const std::string& handoff_id, const Error& error) {
  reactor_.post([this, handoff_id, error] {
    if (const auto at = sending_.find(handoff_id); at != sending_.end()) {
      run_send(handoff_id, at->second.handoff.on_cancel(error, now()));
    }
  });
}

void HandoffService::on_prefill_event(const std::string& id, engine::PrefillEvent event) {
  Sending& sending = sending_.at(id);
  if (auto* pages = std::get_if<engine::PrefillPages>(&event)) {
    std::ranges::move(pages->digests, std::back_inserter(sending.digests));
    run_send(id, sending.handoff.on_pages(pages->pages, now()));
  } else if (const auto* progress = std::get_if<engine::LayerProgress>(&event)) {
    run_send(id, sending.handoff.on_progress(progress->layer, progress->end_token, now()));
  } else if (auto* done = std::get_if<engine::PrefillDone>(&event)) {
    sending.prefilled = now();
    // What was known when the pages came stays: a page that has left its window has none now.
    sending.digests.resize(std::max(sending.digests.size(), done->digests.size()));
    for (size_t i = 0; i < done->digests.size(); ++i) {
      if (!done->digests[i].empty()) sending.digests[i] = std::move(done->digests[i]);
    }
    run_send(id, sending.handoff.on_prefill_done(std::move(done->first_tokens), now()));
  } else if (const auto* failed = std::get_if<protocol::ErrorEvent>(&event)) {
    run_send(id, sending.handoff.on_cancel(failed->error, now()));
  }
}

void HandoffService::remember_end(const std::string& id, const Error& error) {
  ended_.add(id, error, now());
  const auto early = early_.find(id);
  if (early == early_.end()) return;
  const EarlyOpen open = early->second;
  early_.erase(early);
  send_to(
      open.peer,
      protocol::AbortFrame{
          {id, open.attempt, 0}, static_cast<uint32_t>(error.status), error.code, error.message});
}

void HandoffService::on_open(PeerId peer, const protocol::OpenFrame& frame) {
  if (const Error* ended = ended_.find(frame.key.id, now())) {
    send_to(peer, protocol::AbortFrame{frame.key, static_cast<uint32_t>(ended->status), ended->code,
                                       ended->message});
    return;
  }
  if (const auto at = sending_.find(frame.key.id); at != sending_.end()) {
    run_send(frame.key.id, at->second.handoff.on_open(peer, frame.key.attempt, random_nonce(),
                                                      now(), travelling_page_bytes(peer)));
    return;
  }
  // The two legs are dispatched at once, and this one may win. It waits as long as a hello may
  // take.
  const auto refuse = [&](PeerId to, uint32_t attempt) {
    send_to(to, protocol::AbortFrame{{frame.key.id, attempt, 0},
                                     409,
                                     "handoff_superseded",
                                     "A newer attempt replaced this one."});
  };
  if (const auto early = early_.find(frame.key.id); early != early_.end()) {
    if (frame.key.attempt <= early->second.attempt) return refuse(peer, frame.key.attempt);
    refuse(early->second.peer, early->second.attempt);
  } else if (early_.size() >= kMaxEarlyOpens) {
    send_to(peer, protocol::AbortFrame{frame.key, 503, "overloaded",
                                       "Too many handoffs wait for their prefill leg."});
    return;
  }
  early_[frame.key.id] = EarlyOpen{peer, frame.key.attempt, now() + std::chrono::seconds(10)};
}

bool HandoffService::on_sender_frame(PeerId peer, const HandoffFrame& frame) {
  const auto find = [&](const protocol::HandoffKey& key) -> kv::SendHandoff* {
    const auto at = sending_.find(key.id);
    return at == sending_.end() ? nullptr : &at->second.handoff;
  };
  if (const auto* grant = std::get_if<protocol::GrantFrame>(&frame)) {
    if (auto* handoff = find(grant->key)) {
      run_send(grant->key.id, handoff->on_grant(peer, *grant, now()));
    }
  } else if (const auto* busy = std::get_if<protocol::BusyFrame>(&frame)) {
    if (auto* handoff = find(busy->key))
      run_send(busy->key.id, handoff->on_busy(peer, *busy, now()));
  } else if (const auto* renew = std::get_if<protocol::RenewFrame>(&frame)) {
    if (auto* handoff = find(renew->key)) handoff->on_renew(peer, *renew, now());
  } else if (const auto* ack = std::get_if<protocol::AckFrame>(&frame)) {
    if (ack->link_rate > 0) {
      const auto rate = static_cast<double>(ack->link_rate);
      link_rate_ = link_rate_ == 0 ? rate : 0.7 * link_rate_ + 0.3 * rate;
    }
    if (auto* handoff = find(ack->key)) run_send(ack->key.id, handoff->on_ack(peer, *ack, now()));
  } else if (const auto* abort_ack = std::get_if<protocol::AbortAckFrame>(&frame)) {
    if (auto* handoff = find(abort_ack->key))
      run_send(abort_ack->key.id, handoff->on_abort_ack(peer, *abort_ack, now()));
  } else if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame)) {
    // An abort from the side that dialed us concerns a sender; one from a peer that we dialed, a
    // receiver.
    const auto at = peers_.find(peer);
    if (at == peers_.end() || !at->second.address.empty()) return false;
    if (auto* handoff = find(abort->key)) {
      // What came there is not what is described here: the pages may be why.
      if (abort->code == "kv_integrity") engine_.recheck(sending_.at(abort->key.id).sequence);
      run_send(abort->key.id, handoff->on_abort(peer, *abort, now()));
    } else {
      const auto early = early_.find(abort->key.id);
      if (early != early_.end() && early->second.peer == peer &&
          early->second.attempt == abort->key.attempt) {
        early_.erase(early);
      }
      send_to(peer, protocol::AbortAckFrame{abort->key});
    }
  } else {
    return false;
  }
  return true;
}

void HandoffService::run_send(const std::string& id, kv::SendActions actions) {
  for (kv::SendAction& action : actions) {
    if (auto* send = std::get_if<kv::SendFrame>(&action)) {
      if (auto* push = std::get_if<protocol::PushFrame>(&send->frame)) describe(id, *push);
      send_to(send->peer, send->frame);
    } else if (auto* acquire = std::get_if<kv::AcquireReaders>(&action)) {
      engine_.add_readers(std::move(acquire->pages));
    } else if (auto* release = std::get_if<kv::ReleaseReaders>(&action)) {
      engine_.drop_readers(std::move(release->pages));
    } else if (auto* fence = std::get_if<kv::FencePeer>(&action)) {
      fenced_.add();
      observe::log_warning(
          "a decode worker did not acknowledge an abort: its connection is closed");
      if (const auto at = peers_.find(fence->peer); at != peers_.end())
        at->second.connection->close();
    } else if (auto* finished = std::get_if<kv::SendFinished>(&action)) {
      if (const auto at = sending_.find(id); at != sending_.end())
        finish_send(id, at->second, *finished);
    }
  }
  if (const auto at = sending_.find(id); at != sending_.end() && at->second.handoff.idle()) {
    sending_.erase(at);
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
  }
}

// The pages have readers, and this layer of them is final. What came from the cache is described
// as it was when it was computed, not as it is now.
void HandoffService::describe(const std::string& id, protocol::PushFrame& frame) const {
  const auto at = sending_.find(id);
  if (!digests_.on() || at == sending_.end()) return;
  const auto tokens = static_cast<size_t>(at->second.report.prompt_tokens);
  const ops::LayerPlace place = places_[frame.layer];
  for (size_t i = 0; i < frame.pages.size(); ++i) {
    const size_t block = frame.first_block + i;
    const size_t page = block * shape_.groups() + static_cast<size_t>(place.group);
    const auto& known = at->second.digests;
    if (page < known.size() && !known[page].empty()) {
      frame.digests.push_back(known[page][static_cast<size_t>(place.slot)]);
      continue;
    }
    const BlockPart part{.layer = static_cast<int32_t>(frame.layer),
                         .block = static_cast<int64_t>(block),
                         .length = digests_.length(static_cast<int64_t>(block), tokens)};
    frame.digests.push_back(digests_.of(part, part_of(frame.pages[i], frame.layer)));
  }
}

void HandoffService::finish_send(const std::string& id, Sending& sending,
                                 const kv::SendFinished& finished) {
  engine_.abort(sending.sequence);  // running or held: its ownership of the pages ends
  auto done = std::exchange(sending.done, {});
  remember_end(id, finished.error.value_or(Error{
                       409, "handoff_closed", "This handoff has ended: its KV was taken over."}));
  if (finished.error) {
    failed_.add();
    if (done) done(tl::unexpected(*finished.error));
    return;
  }
  sent_.add();
  sent_bytes_.add(static_cast<double>(finished.bytes_sent));
  sending.report.after_prefill = now() - sending.prefilled;
  commit_delay_.observe(to_seconds(sending.report.after_prefill));
  sending.report.kv_bytes = finished.bytes_sent;
  sending.report.blocks_sent = finished.blocks_sent;
  if (done) done(sending.report);
}

}  // namespace tandem::worker
