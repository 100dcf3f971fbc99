#include "kv/handoff/send_handoff.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "protocol/page_window.h"

namespace tandem::kv {

using protocol::PageTag;

namespace {

// Attempts that may wait for their acknowledgements at once.
constexpr size_t kMostDrains = 16;

uint64_t rank_bit(uint32_t rank) {
  return rank < protocol::kMaxHandoffRanks ? uint64_t{1} << rank : 0;
}

}  // namespace

uint32_t HandoffShape::blocks(size_t tokens) const {
  const auto block = static_cast<size_t>(block_tokens);
  return static_cast<uint32_t>((tokens + block - 1) / block);
}

std::vector<uint32_t> HandoffShape::first_live(size_t tokens) const {
  std::vector<uint32_t> first;
  first.reserve(windows.size());
  for (const int32_t window : windows) {
    first.push_back(static_cast<uint32_t>(
        protocol::first_live_block(window, static_cast<int64_t>(tokens), block_tokens)));
  }
  return first;
}

uint64_t HandoffShape::pages(const std::vector<uint32_t>& first, uint32_t blocks) const {
  uint64_t pages = 0;
  for (const uint32_t block : first) pages += blocks - std::min(block, blocks);
  return pages;
}

bool should_offer(int64_t remaining_tokens, uint64_t total_bytes, const OfferEstimate& estimate) {
  if (estimate.prefill_tokens_per_second <= 0 || estimate.link_bytes_per_second <= 0) return true;
  const double prefill = static_cast<double>(remaining_tokens) / estimate.prefill_tokens_per_second;
  const double transfer = static_cast<double>(total_bytes) / estimate.link_bytes_per_second;
  return prefill <= transfer + estimate.margin_seconds;
}

SendHandoff::SendHandoff(std::string id, Shape shape, HandoffTimeouts timeouts,
                         OfferEstimate estimate, TimePoint now, SendFaults faults)
    : id_(std::move(id)),
      shape_(std::move(shape)),
      timeouts_(timeouts),
      estimate_(estimate),
      faults_(faults),
      final_tokens_(shape_.layers(), 0),
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
  blocks_ = shape_.blocks(prompt_.size());
  first_live_ = shape_.first_live(prompt_.size());
  cached_tokens_ = cached_tokens;
  std::ranges::fill(final_tokens_, cached_tokens);
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_pages(std::span<const PageTag> pages, TimePoint now) {
  SendActions actions;
  if (finished_) return actions;
  pages_.insert(pages_.end(), pages.begin(), pages.end());
  acquire(actions);
  advance(actions, now);
  return actions;
}

SendActions SendHandoff::on_progress(int32_t layer, int32_t end_token, TimePoint now) {
  SendActions actions;
  if (finished_ || layer < 0 || layer >= static_cast<int32_t>(shape_.layers())) return actions;
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

SendActions SendHandoff::on_open(PeerId peer, uint32_t attempt, uint64_t nonce, TimePoint now,
                                 uint64_t page_bytes) {
  SendActions actions;
  const protocol::HandoffKey key{id_, attempt, nonce};
  if (finished_ || attempt <= last_attempt_) {
    actions.emplace_back(
        SendFrame{peer, protocol::AbortFrame{key, 409, "handoff_closed",
                                             "This handoff has ended or has a newer attempt."}});
    return actions;
  }
  if (drains_.size() >= kMostDrains) {
    actions.emplace_back(SendFrame{
        peer, protocol::AbortFrame{key, 503, "overloaded",
                                   "Too many attempts of this handoff are still being ended."}});
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
  attempt_->page_bytes = page_bytes != 0 ? page_bytes : shape_.page_bytes;
  attempt_->deadline = TimePoint::max();
  lease_until_ = TimePoint::max();
  advance(actions, now);
  return actions;
}

bool SendHandoff::names(const protocol::HandoffKey& key, const protocol::HandoffKey& said) const {
  return key == said || (faults_.ignore_nonce && key.id == said.id);
}

bool SendHandoff::is_current(PeerId peer, const protocol::HandoffKey& key) const {
  return attempt_ && attempt_->peer == peer && names(attempt_->key, key);
}

void SendHandoff::advance(SendActions& actions, TimePoint now) {
  if (!attempt_ || !admitted_) return;
  SendAttempt& a = *attempt_;
  if (!a.offered) {
    const int64_t slowest = *std::ranges::min_element(final_tokens_);
    const uint64_t bytes = shape_.pages(first_live_, blocks_) * a.page_bytes;
    if (!done_ && !should_offer(static_cast<int64_t>(prompt_.size()) - slowest, bytes, estimate_))
      return;
    a.offered = true;
    a.deadline = now + timeouts_.grant;
    actions.emplace_back(
        SendFrame{a.peer, protocol::OfferFrame{a.key, prompt_, salt_, blocks_, bytes, adapter_}});
    return;
  }
  if (!a.granted || a.committed) return;
  push(actions);
  const bool all_pushed =
      std::ranges::all_of(a.pushed, [&](uint32_t blocks) { return blocks == blocks_; });
  if (!done_ || !all_pushed) return;
  a.committed = true;
  a.deadline = now + timeouts_.ack;
  protocol::CommitFrame commit;
  commit.key = a.key;
  commit.layers = shape_.layers();
  commit.first_blocks.assign(a.first_block.begin(), a.first_block.end());
  commit.blocks = blocks_;
  commit.bytes = shape_.pages(a.first_block, blocks_) * a.page_bytes;
  commit.first_tokens = first_tokens_;
  commit.prompt_tokens = static_cast<uint32_t>(prompt_.size());
  commit.cached_tokens = static_cast<uint32_t>(cached_tokens_);
  actions.emplace_back(SendFrame{a.peer, std::move(commit)});
}

uint32_t SendHandoff::final_blocks(uint32_t layer) const {
  const int32_t end = final_tokens_[layer];
  const uint32_t blocks = end >= static_cast<int32_t>(prompt_.size())
                              ? blocks_
                              : static_cast<uint32_t>(end / shape_.block_tokens);
  return std::min(blocks, known_blocks());
}

void SendHandoff::push(SendActions& actions) {
  SendAttempt& a = *attempt_;
  for (uint32_t layer = 0; layer < shape_.layers(); ++layer) {
    uint32_t& sent = a.pushed[layer];
    const uint32_t end = final_blocks(layer);
    if (end <= sent) continue;
    const auto group = static_cast<uint32_t>(shape_.layer_groups[layer]);
    protocol::PushFrame frame;
    frame.key = a.key;
    frame.layer = layer;
    frame.first_block = sent;
    for (uint32_t block = sent; block < end; ++block) frame.pages.push_back(page(block, group));
    sent = end;
    actions.emplace_back(SendFrame{a.peer, std::move(frame)});
  }
}

// Readers for what is granted, as far as its pages are known.
void SendHandoff::acquire(SendActions& actions) {
  if (!attempt_ || !attempt_->granted) return;
  SendAttempt& a = *attempt_;
  std::vector<PageTag> fresh;
  for (; a.readers_until < known_blocks(); ++a.readers_until) {
    for (uint32_t group = 0; group < shape_.groups(); ++group) {
      if (a.readers_until >= a.first_block[group]) fresh.push_back(page(a.readers_until, group));
    }
  }
  if (fresh.empty()) return;
  a.readers.insert(a.readers.end(), fresh.begin(), fresh.end());
  actions.emplace_back(AcquireReaders{std::move(fresh)});
}

SendActions SendHandoff::on_grant(PeerId peer, const protocol::GrantFrame& frame, TimePoint now) {
  SendActions actions;
  if (!is_current(peer, frame.key) || !attempt_->offered || attempt_->granted) return actions;
  bool sound = frame.first_missing.size() == shape_.groups() && frame.ranks > 0 &&
               frame.ranks <= protocol::kMaxHandoffRanks;
  for (uint32_t group = 0; sound && group < shape_.groups(); ++group) {
    const int64_t first = frame.first_missing[group];
    sound = first >= first_live_[group] && first <= blocks_;
  }
  if (!sound) {
    abort_attempt(
        actions, Error{502, "handoff_protocol", "The peer granted blocks that do not exist."}, now);
    return actions;
  }
  SendAttempt& a = *attempt_;
  a.granted = true;
  a.owing = ~uint64_t{0} >> (protocol::kMaxHandoffRanks - frame.ranks);
  a.deadline = TimePoint::max();
  a.first_block.assign(frame.first_missing.begin(), frame.first_missing.end());
  for (const int32_t group : shape_.layer_groups)
    a.pushed.push_back(a.first_block[static_cast<size_t>(group)]);
  acquire(actions);
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

void SendHandoff::on_renew(PeerId peer, const protocol::RenewFrame& frame, TimePoint now) {
  if (is_current(peer, frame.key) && attempt_->committed) attempt_->deadline = now + timeouts_.ack;
}

SendActions SendHandoff::on_ack(PeerId peer, const protocol::AckFrame& frame, TimePoint /*now*/) {
  SendActions actions;
  if (!is_current(peer, frame.key) || !attempt_->committed) return actions;
  attempt_->owing &= ~rank_bit(frame.rank);
  if (attempt_->owing != 0) return actions;
  blocks_sent_ = blocks_ - *std::ranges::min_element(attempt_->first_block);
  bytes_sent_ = shape_.pages(attempt_->first_block, blocks_) * attempt_->page_bytes;
  end_attempt(actions);
  finish(actions, std::nullopt);
  return actions;
}

SendActions SendHandoff::on_abort(PeerId peer, const protocol::AbortFrame& frame, TimePoint now) {
  SendActions actions;
  // That rank has stopped copying before it sent ABORT, so this is also its acknowledgement. Before
  // it saw an offer it knows no nonce; nothing was granted to it then.
  actions.emplace_back(SendFrame{peer, protocol::AbortAckFrame{frame.key, frame.rank}});
  if (attempt_ && attempt_->peer == peer &&
      (names(attempt_->key, frame.key) ||
       (!attempt_->granted && frame.key.attempt == attempt_->key.attempt &&
        frame.key.nonce == 0))) {
    attempt_->owing &= ~rank_bit(frame.rank);
    if (attempt_->owing == 0) {
      end_attempt(actions);
    } else {
      abort_attempt(actions, Error{502, "handoff_aborted", "Another rank gave up the transfer."},
                    now);
    }
    lease_until_ = now + timeouts_.lease;
  }
  auto extra = on_abort_ack(peer, protocol::AbortAckFrame{frame.key, frame.rank}, now);
  std::ranges::move(extra, std::back_inserter(actions));
  return actions;
}

SendActions SendHandoff::on_abort_ack(PeerId peer, const protocol::AbortAckFrame& frame,
                                      TimePoint /*now*/) {
  SendActions actions;
  std::erase_if(drains_, [&](SendDrain& drain) {
    if (drain.peer != peer || !names(drain.key, frame.key)) return false;
    drain.owing &= ~rank_bit(frame.rank);
    if (drain.owing != 0) return false;
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
    if (!faults_.time_frees) actions.emplace_back(FencePeer{drain.peer});
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
  if (faults_.ignore_abort) return end_attempt(actions);
  // To whom nothing was granted owes nothing: its grant, should it cross this, is for nobody.
  if (a.owing != 0) {
    drains_.push_back(
        SendDrain{a.peer, a.key, a.owing, std::move(a.readers), now + timeouts_.drain});
  }
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
