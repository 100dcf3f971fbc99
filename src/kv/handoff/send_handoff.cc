#include "kv/handoff/send_handoff.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem::kv {

using protocol::PageTag;

bool should_offer(int64_t remaining_tokens, uint64_t total_bytes, const OfferEstimate& estimate) {
  if (estimate.prefill_tokens_per_second <= 0 || estimate.link_bytes_per_second <= 0) return true;
  const double prefill = static_cast<double>(remaining_tokens) / estimate.prefill_tokens_per_second;
  const double transfer = static_cast<double>(total_bytes) / estimate.link_bytes_per_second;
  return prefill <= transfer + estimate.margin_seconds;
}

SendHandoff::SendHandoff(std::string id, Shape shape, HandoffTimeouts timeouts,
                         OfferEstimate estimate, TimePoint now)
    : id_(std::move(id)),
      shape_(shape),
      timeouts_(timeouts),
      estimate_(estimate),
      final_tokens_(static_cast<size_t>(shape.layers), 0),
      lease_until_(TimePoint::max()) {
  (void)now;
}

SendActions SendHandoff::on_admitted(std::vector<int32_t> prompt, std::string salt,
                                     std::string adapter, std::vector<PageTag> pages,
                                     int32_t cached_tokens, TimePoint now) {
  SendActions actions;
  if (finished_) return actions;
  admitted_ = true;
  prompt_ = std::move(prompt);
  salt_ = std::move(salt);
  adapter_ = std::move(adapter);
  pages_ = std::move(pages);
  cached_tokens_ = cached_tokens;
  std::ranges::fill(final_tokens_, cached_tokens);
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_progress(int32_t layer, int32_t end_token, TimePoint now) {
  SendActions actions;
  if (finished_ || layer < 0 || layer >= shape_.layers) return actions;
  auto& final = final_tokens_[static_cast<size_t>(layer)];
  final = std::max(final, end_token);
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_prefill_done(std::vector<protocol::ScoredToken> first_tokens,
                                         TimePoint now) {
  SendActions actions;
  if (finished_) return actions;
  done_ = true;
  first_tokens_ = std::move(first_tokens);
  if (!attempt_) lease_until_ = now + timeouts_.lease;
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_open(PeerId peer, uint32_t attempt, uint64_t nonce, TimePoint now) {
  SendActions actions;
  const protocol::HandoffKey key{id_, attempt, nonce};
  if (finished_ || attempt <= last_attempt_) {
    actions.emplace_back(
        SendFrame{peer, protocol::AbortFrame{key, 409, "handoff_closed",
                                             "This handoff has ended or has a newer attempt."}});
    return actions;
  }
  if (attempt_) {
    abort_attempt(actions, Error{409, "handoff_superseded", "A newer attempt replaced this one."},
                  now);
  }
  last_attempt_ = attempt;
  attempt_.emplace();
  attempt_->peer = peer;
  attempt_->key = key;
  attempt_->deadline = TimePoint::max();
  lease_until_ = TimePoint::max();
  advance(actions, now);
  return actions;
}

bool SendHandoff::is_current(PeerId peer, const protocol::HandoffKey& key) const {
  return attempt_ && attempt_->peer == peer && attempt_->key == key;
}

void SendHandoff::advance(SendActions& actions, TimePoint now) {
  if (!attempt_ || !admitted_) return;
  SendAttempt& a = *attempt_;
  if (!a.offered) {
    const int64_t slowest = *std::ranges::min_element(final_tokens_);
    const uint64_t bytes = pages_.size() * shape_.page_bytes;
    if (!done_ && !should_offer(static_cast<int64_t>(prompt_.size()) - slowest, bytes, estimate_))
      return;
    a.offered = true;
    a.deadline = now + timeouts_.grant;
    actions.emplace_back(SendFrame{
        a.peer, protocol::OfferFrame{a.key, prompt_, salt_, static_cast<uint32_t>(pages_.size()),
                                     bytes, adapter_}});
    return;
  }
  if (!a.granted || a.committed) return;
  push(actions);
  const bool all_pushed =
      std::ranges::all_of(a.pushed, [&](uint32_t blocks) { return blocks == pages_.size(); });
  if (!done_ || !all_pushed) return;
  a.committed = true;
  a.deadline = now + timeouts_.ack;
  const auto blocks = static_cast<uint32_t>(pages_.size());
  protocol::CommitFrame commit;
  commit.key = a.key;
  commit.layers = static_cast<uint32_t>(shape_.layers);
  commit.first_block = a.first_block;
  commit.blocks = blocks;
  commit.bytes = (blocks - a.first_block) * shape_.page_bytes;
  commit.first_tokens = first_tokens_;
  commit.prompt_tokens = static_cast<uint32_t>(prompt_.size());
  commit.cached_tokens = static_cast<uint32_t>(cached_tokens_);
  actions.emplace_back(SendFrame{a.peer, std::move(commit)});
}

uint32_t SendHandoff::final_blocks(int32_t layer) const {
  const int32_t end = final_tokens_[static_cast<size_t>(layer)];
  if (end >= static_cast<int32_t>(prompt_.size())) return static_cast<uint32_t>(pages_.size());
  return static_cast<uint32_t>(end / shape_.block_tokens);
}

void SendHandoff::push(SendActions& actions) {
  SendAttempt& a = *attempt_;
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    uint32_t& sent = a.pushed[static_cast<size_t>(layer)];
    const uint32_t end = final_blocks(layer);
    if (end <= sent) continue;
    protocol::PushFrame frame;
    frame.key = a.key;
    frame.layer = static_cast<uint32_t>(layer);
    frame.first_block = sent;
    frame.pages.assign(pages_.begin() + sent, pages_.begin() + end);
    sent = end;
    actions.emplace_back(SendFrame{a.peer, std::move(frame)});
  }
}

SendActions SendHandoff::on_grant(PeerId peer, const protocol::GrantFrame& frame, TimePoint now) {
  SendActions actions;
  if (!is_current(peer, frame.key) || !attempt_->offered || attempt_->granted) return actions;
  if (frame.first_missing_block > pages_.size()) {
    abort_attempt(
        actions, Error{502, "handoff_protocol", "The peer granted blocks that do not exist."}, now);
    return actions;
  }
  SendAttempt& a = *attempt_;
  a.granted = true;
  a.deadline = TimePoint::max();
  a.first_block = frame.first_missing_block;
  a.pushed.assign(static_cast<size_t>(shape_.layers), a.first_block);
  a.readers.assign(pages_.begin() + a.first_block, pages_.end());
  if (!a.readers.empty()) actions.emplace_back(AcquireReaders{a.readers});
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_busy(PeerId peer, const protocol::BusyFrame& frame, TimePoint now) {
  SendActions actions;
  if (!is_current(peer, frame.key) || attempt_->granted) return actions;
  attempt_.reset();
  lease_until_ = now + timeouts_.lease;
  return actions;
}

SendActions SendHandoff::on_ack(PeerId peer, const protocol::AckFrame& frame, TimePoint /*now*/) {
  SendActions actions;
  if (!is_current(peer, frame.key) || !attempt_->committed) return actions;
  blocks_sent_ = static_cast<uint32_t>(pages_.size()) - attempt_->first_block;
  bytes_sent_ = blocks_sent_ * shape_.page_bytes;
  end_attempt(actions);
  finish(actions, std::nullopt);
  return actions;
}

SendActions SendHandoff::on_abort(PeerId peer, const protocol::AbortFrame& frame, TimePoint now) {
  SendActions actions;
  // The receiver has stopped copying before it sent ABORT, so this is also its acknowledgement.
  actions.emplace_back(SendFrame{peer, protocol::AbortAckFrame{frame.key}});
  if (attempt_ && attempt_->peer == peer && attempt_->key.attempt == frame.key.attempt &&
      (frame.key.nonce == 0 || frame.key.nonce == attempt_->key.nonce)) {
    end_attempt(actions);
    lease_until_ = now + timeouts_.lease;
  }
  auto extra = on_abort_ack(peer, protocol::AbortAckFrame{frame.key}, now);
  std::ranges::move(extra, std::back_inserter(actions));
  return actions;
}

SendActions SendHandoff::on_abort_ack(PeerId peer, const protocol::AbortAckFrame& frame,
                                      TimePoint /*now*/) {
  SendActions actions;
  std::erase_if(drains_, [&](SendDrain& drain) {
    if (drain.peer != peer || !(drain.key == frame.key)) return false;
    if (!drain.readers.empty()) actions.emplace_back(ReleaseReaders{std::move(drain.readers)});
    return true;
  });
  return actions;
}

SendActions SendHandoff::on_peer_lost(PeerId peer, TimePoint now) {
  SendActions actions;
  if (attempt_ && attempt_->peer == peer) {
    end_attempt(actions);
    lease_until_ = now + timeouts_.lease;
  }
  std::erase_if(drains_, [&](SendDrain& drain) {
    if (drain.peer != peer) return false;
    if (!drain.readers.empty()) actions.emplace_back(ReleaseReaders{std::move(drain.readers)});
    return true;
  });
  return actions;
}

SendActions SendHandoff::on_cancel(const Error& error, TimePoint now) {
  SendActions actions;
  if (finished_) return actions;
  if (attempt_) abort_attempt(actions, error, now);
  finish(actions, error);
  return actions;
}

SendActions SendHandoff::on_time(TimePoint now) {
  SendActions actions;
  if (attempt_ && now >= attempt_->deadline) {
    abort_attempt(actions,
                  Error{504, "handoff_timeout", "The decode worker did not answer in time."}, now);
    lease_until_ = now + timeouts_.lease;
  }
  if (!finished_ && !attempt_ && now >= lease_until_) {
    finish(actions,
           Error{504, "handoff_timeout", "No decode worker took over the request in time."});
  }
  for (SendDrain& drain : drains_) {
    if (now < drain.deadline) continue;
    actions.emplace_back(FencePeer{drain.peer});
    const PeerId peer = drain.peer;
    auto extra = on_peer_lost(peer, now);  // invalidates `drain`
    std::ranges::move(extra, std::back_inserter(actions));
    break;  // one fence per tick; the next tick takes the next
  }
  return actions;
}

void SendHandoff::abort_attempt(SendActions& actions, const Error& error, TimePoint now) {
  SendAttempt& a = *attempt_;
  actions.emplace_back(SendFrame{
      a.peer,
      protocol::AbortFrame{a.key, static_cast<uint32_t>(error.status), error.code, error.message}});
  drains_.push_back(SendDrain{a.peer, a.key, std::move(a.readers), now + timeouts_.drain});
  attempt_.reset();
}

void SendHandoff::end_attempt(SendActions& actions) {
  if (!attempt_->readers.empty())
    actions.emplace_back(ReleaseReaders{std::move(attempt_->readers)});
  attempt_.reset();
}

void SendHandoff::finish(SendActions& actions, std::optional<Error> error) {
  if (finished_) return;
  finished_ = true;
  actions.emplace_back(SendFinished{std::move(error), bytes_sent_, blocks_sent_});
}

}  // namespace tandem::kv
