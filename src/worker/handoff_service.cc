#include "worker/handoff_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "numerics/hmac.h"
#include "observe/log.h"

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

kv::SendHandoff::Shape shape_of(const ops::PageLayout& layout) {
  return {.layers = layout.layers,
          .block_tokens = layout.block_tokens,
          .page_bytes = layout.page_bytes()};
}

}  // namespace

HandoffService::HandoffService(engine::Engine& engine, const device::SharedArena& arena,
                               HandoffServiceOptions options, observe::Metrics& metrics)
    : engine_(engine),
      arena_(arena),
      options_(std::move(options)),
      sent_bytes_(
          metrics.counter("tandem_kv_sent_bytes_total", "KV bytes handed to decode workers.")),
      received_bytes_(metrics.counter("tandem_kv_received_bytes_total",
                                      "KV bytes taken over from prefill workers.")),
      sent_(metrics.counter("tandem_handoffs_sent_total", "Handoffs completed as prefill.")),
      received_(metrics.counter("tandem_handoffs_received_total", "Handoffs completed as decode.")),
      failed_(metrics.counter("tandem_handoffs_failed_total",
                              "Handoffs that ended with an error, on this side.")),
      fenced_(metrics.counter("tandem_handoff_peers_fenced_total",
                              "Peers cut off because they did not acknowledge an abort.")),
      open_(metrics.gauge("tandem_handoffs_open", "Handoffs in progress or draining.")) {}

Result<std::unique_ptr<HandoffService>> HandoffService::create(engine::Engine& engine,
                                                               const device::SharedArena& arena,
                                                               HandoffServiceOptions options,
                                                               observe::Metrics& metrics) {
  std::unique_ptr<HandoffService> service(
      new HandoffService(engine, arena, std::move(options), metrics));
  if (!service->options_.listen_path.empty()) {
    auto listener = kv::PeerListener::listen(
        service->reactor_, service->options_.listen_path, service->options_.peer, arena,
        [raw = service.get()](const std::shared_ptr<kv::PeerConnection>& peer) {
          raw->adopt(raw->next_peer_++, peer, "");
        });
    if (!listener) return tl::unexpected(listener.error());
    service->listener_ = std::move(*listener);
  }
  service->reactor_.spawn(service->tick_loop());
  service->thread_ = std::thread([raw = service.get()] { raw->reactor_.run(); });
  return service;
}

HandoffService::~HandoffService() { stop(); }

void HandoffService::stop() {
  if (thread_.joinable()) {
    reactor_.stop();
    thread_.join();
  }
}

kv::OfferEstimate HandoffService::estimate() const {
  return {.prefill_tokens_per_second = engine_.stats().prefill_tokens_per_second,
          .link_bytes_per_second = link_rate_};
}

// ---- peers ----

void HandoffService::adopt(PeerId id, const std::shared_ptr<kv::PeerConnection>& connection,
                           std::string address) {
  peers_[id] = Peer{connection, std::move(address)};
  connection->start([this, id](HandoffFrame frame) { on_frame(id, std::move(frame)); },
                    [this, id] { on_peer_closed(id); });
}

void HandoffService::send_to(PeerId peer, const HandoffFrame& frame) {
  if (const auto at = peers_.find(peer); at != peers_.end()) at->second.connection->send(frame);
}

void HandoffService::on_peer_closed(PeerId peer) {
  peers_.erase(peer);
  std::vector<std::string> sends;
  sends.reserve(sending_.size());
  for (const auto& [id, sending] : sending_) sends.push_back(id);
  for (const auto& id : sends) {
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_peer_lost(peer, now()));
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

void HandoffService::on_frame(PeerId peer, HandoffFrame frame) {
  if (const auto* open = std::get_if<protocol::OpenFrame>(&frame)) {
    on_open(peer, *open);
  } else if (!on_sender_frame(peer, frame)) {
    on_receiver_frame(peer, frame);
  }
}

// ---- prefill side ----

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
                                                          std::move(admitted->pages),
                                                          admitted->cached_tokens, now()));
            } else {
              on_prefill_event(id, std::move(event));
            }
          });
        });
    if (!sequence) {
      done(tl::unexpected(sequence.error()));
      return;
    }
    kv::SendHandoff handoff(id, shape_of(engine_.layout()), options_.timeouts, estimate(), now());
    sending_.emplace(id, Sending{std::move(handoff), *sequence, std::move(done), report, {}});
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
    if (const auto early = early_.find(id); early != early_.end()) {
      const EarlyOpen open = early->second;
      early_.erase(early);
      if (peers_.contains(open.peer)) {
        run_send(id,
                 sending_.at(id).handoff.on_open(open.peer, open.attempt, random_nonce(), now()));
      }
    }
  });
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
  if (const auto* progress = std::get_if<engine::LayerProgress>(&event)) {
    run_send(id, sending.handoff.on_progress(progress->layer, progress->end_token, now()));
  } else if (auto* done = std::get_if<engine::PrefillDone>(&event)) {
    run_send(id, sending.handoff.on_prefill_done(std::move(done->first_tokens), now()));
  } else if (const auto* failed = std::get_if<protocol::ErrorEvent>(&event)) {
    run_send(id, sending.handoff.on_cancel(failed->error, now()));
  }
}

void HandoffService::on_open(PeerId peer, const protocol::OpenFrame& frame) {
  if (const auto at = sending_.find(frame.key.id); at != sending_.end()) {
    run_send(frame.key.id,
             at->second.handoff.on_open(peer, frame.key.attempt, random_nonce(), now()));
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
      sending_.at(grant->key.id).granted = now();
      run_send(grant->key.id, handoff->on_grant(peer, *grant, now()));
    }
  } else if (const auto* busy = std::get_if<protocol::BusyFrame>(&frame)) {
    if (auto* handoff = find(busy->key))
      run_send(busy->key.id, handoff->on_busy(peer, *busy, now()));
  } else if (const auto* ack = std::get_if<protocol::AckFrame>(&frame)) {
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
        finish_send(at->second, *finished);
    }
  }
  if (const auto at = sending_.find(id); at != sending_.end() && at->second.handoff.idle()) {
    sending_.erase(at);
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
  }
}

void HandoffService::finish_send(Sending& sending, const kv::SendFinished& finished) {
  engine_.abort(sending.sequence);  // running or held: its ownership of the pages ends
  auto done = std::exchange(sending.done, {});
  if (finished.error) {
    failed_.add();
    if (done) done(tl::unexpected(*finished.error));
    return;
  }
  sent_.add();
  sent_bytes_.add(static_cast<double>(finished.bytes_sent));
  const double seconds = to_seconds(now() - sending.granted);
  if (finished.bytes_sent > (1U << 20) && seconds > 0) {
    const double rate = static_cast<double>(finished.bytes_sent) / seconds;
    link_rate_ = link_rate_ == 0 ? rate : 0.7 * link_rate_ + 0.3 * rate;
  }
  sending.report.kv_bytes = finished.bytes_sent;
  sending.report.blocks_sent = finished.blocks_sent;
  if (done) done(sending.report);
}

// ---- decode side ----

std::shared_ptr<HandoffService::DecodeLeg> HandoffService::start_decode(
    protocol::GenerateRequest request, engine::EventSink sink) {
  auto leg = std::make_shared<DecodeLeg>();
  leg->sink_ = std::move(sink);
  reactor_.post([this, leg, request = std::move(request)]() mutable {
    if (leg->cancelled_) return;
    const uint64_t key = next_key_++;
    leg->key_ = key;
    const std::string address = request.handoff.prefill_address;
    kv::ReceiveHandoff handoff(request.handoff.handoff_id, request.handoff.attempt,
                               shape_of(engine_.layout()), options_.timeouts);
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
  auto connection = co_await kv::dial_peer(reactor_, address, options_.peer);
  PeerId peer = 0;
  if (connection) {
    peer = next_peer_++;
    adopt(peer, *connection, address);
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
  run_receive(key, receiving_.at(key).handoff.open(now()));
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
      send_to(receiving.peer, send->frame);
    } else if (auto* pages = std::get_if<kv::ReservePages>(&action)) {
      reserve(key, *pages);
    } else if (auto* copies = std::get_if<kv::CopyPages>(&action)) {
      copy(key, *copies);
    } else if (auto* start = std::get_if<kv::StartSequence>(&action)) {
      start_sequence(key, *start);
    } else if (std::holds_alternative<kv::ReleasePages>(action)) {
      engine_.abandon_received(receiving.pages.id);
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
  if (const auto at = receiving_.find(key);
      at != receiving_.end() && at->second.handoff.finished()) {
    receiving_.erase(at);
    open_.set(static_cast<double>(sending_.size() + receiving_.size()));
  }
}

void HandoffService::reserve(uint64_t key, const kv::ReservePages& action) {
  Receiving& receiving = receiving_.at(key);
  if (action.salt != receiving.request.context.salt ||
      (!receiving.request.prompt.empty() && receiving.request.prompt != action.tokens)) {
    run_receive(key, receiving.handoff.on_cancel(
                         Error{502, "handoff_protocol", "The offer is for another prompt."}));
    return;
  }
  receiving.tokens = action.tokens;
  engine_.reserve(
      action.tokens, action.salt, options_.timeouts.reserve,
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

void HandoffService::copy(uint64_t key, const kv::CopyPages& action) {
  Receiving& receiving = receiving_.at(key);
  const auto peer = peers_.find(receiving.peer);
  const device::RemoteArena* remote =
      peer == peers_.end() ? nullptr : peer->second.connection->arena();
  const ops::PageLayout& layout = engine_.layout();
  const size_t offset = layout.k_offset(static_cast<int>(action.layer), 0);
  const size_t bytes = layout.layer_bytes();
  bool intact = remote != nullptr;
  for (size_t i = 0; i < action.source.size() && intact; ++i) {
    const kv::PageTag target = receiving.pages.pages[action.first_block + i];
    std::byte* page =
        arena_.pages() + static_cast<size_t>(target.page) * arena_.shape().page_stride;
    intact = remote->copy(action.source[i].page, action.source[i].generation, offset,
                          {page + offset, bytes});
  }
  receiving.bytes += bytes * action.source.size();
  run_receive(key,
              receiving.handoff.on_copied(action.layer, action.first_block,
                                          static_cast<uint32_t>(action.source.size()), intact));
}

void HandoffService::start_sequence(uint64_t key, const kv::StartSequence& action) {
  Receiving& receiving = receiving_.at(key);
  protocol::GenerateRequest request = std::move(receiving.request);
  request.prompt = std::move(receiving.tokens);
  const auto leg = receiving.leg;
  const engine::SequenceId sequence = receiving.pages.id;
  leg->sequence_ = sequence;
  engine_.start_received(sequence, std::move(request), action.first_tokens,
                         static_cast<int32_t>(action.cached_tokens), leg->sink_, [this, key] {
                           reactor_.post([this, key] {
                             if (const auto at = receiving_.find(key); at != receiving_.end()) {
                               run_receive(key, at->second.handoff.on_started());
                             }
                           });
                         });
  // Cancelled between the check in cancel_decode and the store above.
  if (leg->cancelled_) engine_.abort(sequence);
}

// ---- time ----

boost::asio::awaitable<void> HandoffService::tick_loop() {
  while (true) {
    co_await reactor_.sleep(std::chrono::milliseconds(50));
    const TimePoint time = now();
    std::vector<std::string> sends;
    sends.reserve(sending_.size());
    for (const auto& [id, sending] : sending_) sends.push_back(id);
    for (const auto& id : sends) {
      if (const auto at = sending_.find(id); at != sending_.end())
        run_send(id, at->second.handoff.on_time(time));
    }
    std::vector<uint64_t> receives;
    receives.reserve(receiving_.size());
    for (const auto& [key, receiving] : receiving_) receives.push_back(key);
    for (const uint64_t key : receives) {
      if (const auto at = receiving_.find(key); at != receiving_.end())
        run_receive(key, at->second.handoff.on_time(time));
    }
    for (auto at = early_.begin(); at != early_.end();) {
      if (time < at->second.until) {
        ++at;
        continue;
      }
      send_to(at->second.peer,
              protocol::AbortFrame{{at->first, at->second.attempt, 0},
                                   504,
                                   "handoff_timeout",
                                   "No prefill leg with this handoff id arrived."});
      at = early_.erase(at);
    }
  }
}

}  // namespace tandem::worker
