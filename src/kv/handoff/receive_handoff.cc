#include "kv/handoff/receive_handoff.h"

#include <algorithm>
#include <utility>

namespace tandem::kv {

namespace {
Error protocol_error(std::string message) {
  return Error{502, "handoff_protocol", std::move(message)};
}
}  // namespace

ReceiveHandoff::ReceiveHandoff(std::string id, uint32_t attempt, SendHandoff::Shape shape,
                               HandoffTimeouts timeouts)
    : key_{std::move(id), attempt, 0}, shape_(std::move(shape)), timeouts_(timeouts) {}

ReceiveActions ReceiveHandoff::open(TimePoint now) {
  deadline_ = now + timeouts_.offer;
  ReceiveActions actions;
  actions.emplace_back(SendToPeer{protocol::OpenFrame{key_}});
  return actions;
}

ReceiveActions ReceiveHandoff::on_offer(const protocol::OfferFrame& frame, TimePoint now) {
  if (state_ != State::kOpening || frame.key.id != key_.id || frame.key.attempt != key_.attempt)
    return {};
  key_.nonce = frame.key.nonce;
  if (frame.tokens.empty() || shape_.blocks(frame.tokens.size()) != frame.blocks) {
    return fail(protocol_error("The offer's tokens do not fill its blocks."), true);
  }
  blocks_ = frame.blocks;
  tokens_ = frame.tokens.size();
  state_ = State::kReserving;
  deadline_ = now + timeouts_.progress;
  ReceiveActions actions;
  actions.emplace_back(ReservePages{frame.tokens, frame.salt, frame.adapter});
  return actions;
}

ReceiveActions ReceiveHandoff::on_reserved(std::vector<uint32_t> first_missing, TimePoint now) {
  if (state_ != State::kReserving) {
    // Cancelled while the pages were being found.
    ReceiveActions actions;
    actions.emplace_back(ReleasePages{});
    return actions;
  }
  reserved_ = true;
  first_missing_ = std::move(first_missing);
  requested_.assign(size_t{shape_.layers()} * blocks_, false);
  state_ = State::kReceiving;
  deadline_ = now + timeouts_.progress;
  ReceiveActions actions;
  actions.emplace_back(
      SendToPeer{protocol::GrantFrame{key_, {first_missing_.begin(), first_missing_.end()}}});
  return actions;
}

ReceiveActions ReceiveHandoff::on_no_room(const Error& error) {
  if (state_ != State::kReserving) return {};
  ReceiveActions actions;
  actions.emplace_back(SendToPeer{protocol::BusyFrame{key_, error.message}});
  state_ = State::kFinished;
  actions.emplace_back(ReceiveFinished{error});
  return actions;
}

ReceiveActions ReceiveHandoff::on_push(const protocol::PushFrame& frame, TimePoint now) {
  if (state_ != State::kReceiving || !is_mine(frame.key)) return {};
  const uint64_t end = uint64_t{frame.first_block} + frame.pages.size();
  if (frame.layer >= shape_.layers() || end > blocks_ ||
      frame.first_block < first_missing_of(frame.layer)) {
    return fail(protocol_error("A push names a layer or block outside the offer."), true);
  }
  for (uint64_t block = frame.first_block; block < end; ++block) {
    auto slot = requested_[size_t{frame.layer} * blocks_ + block];
    if (slot) return fail(protocol_error("A block was pushed twice."), true);
    slot = true;
  }
  deadline_ = now + timeouts_.progress;
  ReceiveActions actions;
  actions.emplace_back(CopyPages{frame.layer, frame.first_block, frame.pages});
  return actions;
}

ReceiveActions ReceiveHandoff::on_copied(uint32_t /*layer*/, uint32_t /*first_block*/,
                                         uint32_t count, bool intact) {
  if (state_ != State::kReceiving) return {};
  if (!intact) {
    return fail(
        Error{502, "kv_generation_mismatch", "A source page was reused during the transfer."},
        true);
  }
  covered_ += count;
  return {};
}

ReceiveActions ReceiveHandoff::on_commit(const protocol::CommitFrame& frame, TimePoint /*now*/) {
  if (state_ != State::kReceiving || !is_mine(frame.key)) return {};
  uint64_t expected = 0;
  for (uint32_t layer = 0; layer < shape_.layers(); ++layer)
    expected += blocks_ - first_missing_of(layer);
  const uint64_t bytes = shape_.pages(first_missing_, blocks_) * shape_.page_bytes;
  if (frame.layers != shape_.layers() || frame.blocks != blocks_ ||
      !std::ranges::equal(frame.first_blocks, first_missing_) || frame.bytes != bytes ||
      covered_ != expected || frame.first_tokens.empty() || frame.prompt_tokens != tokens_ ||
      frame.cached_tokens > tokens_) {
    return fail(Error{502, "kv_incomplete", "The transfer does not cover the blocks it promised."},
                true);
  }
  state_ = State::kStarting;
  deadline_ = TimePoint::max();
  ReceiveActions actions;
  actions.emplace_back(StartSequence{frame.first_tokens, frame.prompt_tokens, frame.cached_tokens});
  return actions;
}

ReceiveActions ReceiveHandoff::on_started() {
  if (state_ != State::kStarting) return {};
  state_ = State::kFinished;
  ReceiveActions actions;
  actions.emplace_back(SendToPeer{protocol::AckFrame{key_}});
  actions.emplace_back(ReceiveFinished{});
  return actions;
}

ReceiveActions ReceiveHandoff::on_abort(const protocol::AbortFrame& frame) {
  ReceiveActions actions;
  if (frame.key.id != key_.id || frame.key.attempt != key_.attempt) return actions;
  actions.emplace_back(SendToPeer{protocol::AbortAckFrame{frame.key}});
  if (state_ == State::kFinished || state_ == State::kStarting) return actions;
  // Whatever the other side says, it is not the fault of the client that waits here.
  const bool usual = frame.status >= 500 && frame.status <= 599;
  auto ended =
      fail(Error{usual ? static_cast<int>(frame.status) : 502, frame.code, frame.message}, false);
  actions.insert(actions.begin(), std::make_move_iterator(ended.begin()),
                 std::make_move_iterator(ended.end()));
  return actions;
}

ReceiveActions ReceiveHandoff::on_peer_lost() {
  if (state_ == State::kFinished || state_ == State::kStarting) return {};
  return fail(Error{502, "prefill_lost", "The prefill worker went away during the transfer."},
              false);
}

ReceiveActions ReceiveHandoff::on_cancel(const Error& error) {
  if (state_ == State::kFinished || state_ == State::kStarting) return {};
  return fail(error, true);
}

ReceiveActions ReceiveHandoff::on_time(TimePoint now) {
  if (state_ == State::kFinished || now < deadline_) return {};
  return fail(
      Error{504, "handoff_timeout", "The prefill worker did not send the prompt's KV in time."},
      true);
}

ReceiveActions ReceiveHandoff::fail(const Error& error, bool tell_peer) {
  ReceiveActions actions;
  if (reserved_) actions.emplace_back(ReleasePages{});
  if (tell_peer) {
    actions.emplace_back(SendToPeer{protocol::AbortFrame{key_, static_cast<uint32_t>(error.status),
                                                         error.code, error.message}});
  }
  state_ = State::kFinished;
  actions.emplace_back(ReceiveFinished{error});
  return actions;
}

}  // namespace tandem::kv
