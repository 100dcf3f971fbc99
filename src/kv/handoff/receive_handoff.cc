#include "kv/handoff/receive_handoff.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tandem::kv {

namespace {

// A peer says ABORT once or twice; what it says over and over is not answered for ever.
constexpr size_t kMostFarewells = 16;

Error protocol_error(std::string message) {
  return Error{502, "handoff_protocol", std::move(message)};
}

Error copy_error(CopyResult result) {
  switch (result) {
    case CopyResult::kStale:
      return {502, "kv_generation_mismatch", "A source page was reused during the transfer."};
    case CopyResult::kCorrupt:
      return {502, "kv_integrity", "The bytes of a block are not those that the sender described."};
    default:
      return {502, "kv_transfer_failed", "Pages could not be copied from the prefill worker."};
  }
}

}  // namespace

ReceiveHandoff::ReceiveHandoff(std::string id, uint32_t attempt, SendHandoff::Shape shape,
                               HandoffTimeouts timeouts, HandoffRanks ranks, ReceiveFaults faults)
    : key_{std::move(id), attempt, 0},
      shape_(std::move(shape)),
      timeouts_(timeouts),
      ranks_(ranks),
      faults_(faults) {}

ReceiveActions ReceiveHandoff::open(TimePoint now) {
  deadline_ = now + timeouts_.offer;
  ReceiveActions actions;
  actions.emplace_back(SendToPeer{protocol::OpenFrame{key_}});
  return actions;
}

ReceiveActions ReceiveHandoff::on_offer(const protocol::OfferFrame& frame, TimePoint now) {
  if (state_ != State::kOpening || frame.key.id != key_.id || frame.key.attempt != key_.attempt)
    return {};
  if (frame.key.nonce == 0) return fail(protocol_error("The offer has no nonce."), true);
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
  first_missing_ = std::move(first_missing);
  coverage_.assign(size_t{shape_.layers()} * blocks_, Block::kMissing);
  state_ = State::kReceiving;
  deadline_ = now + timeouts_.progress;
  ReceiveActions actions;
  actions.emplace_back(SendToPeer{
      protocol::GrantFrame{key_, {first_missing_.begin(), first_missing_.end()}, ranks_.count}});
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
      frame.first_block < first_missing_of(frame.layer) ||
      (!frame.digests.empty() && frame.digests.size() != frame.pages.size())) {
    return fail(protocol_error("A push names a layer or block outside the offer."), true);
  }
  if (frame.pages.empty()) return {};
  // All or nothing: what is not copied after all would be waited for.
  const std::span pushed(&coverage_[size_t{frame.layer} * blocks_ + frame.first_block],
                         frame.pages.size());
  if (std::ranges::any_of(pushed, [](Block state) { return state != Block::kMissing; }))
    return fail(protocol_error("A block was pushed twice."), true);
  std::ranges::fill(pushed, Block::kCopying);
  copying_ += pushed.size();
  deadline_ = now + timeouts_.progress;
  ReceiveActions actions;
  actions.emplace_back(CopyPages{frame.layer, frame.first_block, frame.pages, frame.digests});
  return actions;
}

ReceiveActions ReceiveHandoff::on_copied(uint32_t layer, uint32_t first_block, uint32_t count,
                                         CopyResult result, TimePoint now) {
  ReceiveActions actions;
  if (layer >= shape_.layers() || uint64_t{first_block} + count > blocks_) return actions;
  if (faults_.accept_any_copy) result = CopyResult::kIntact;
  for (uint32_t block = first_block; block < first_block + count; ++block) {
    Block& state = coverage_[size_t{layer} * blocks_ + block];
    if (state != Block::kCopying) continue;
    state = result == CopyResult::kIntact ? Block::kCovered : Block::kMissing;
    covered_ += result == CopyResult::kIntact ? 1 : 0;
    --copying_;
  }
  may_be_written_ |= result == CopyResult::kUnfenced;
  if (state_ == State::kDraining) {
    if (copying_ == 0) settle(actions);
    return actions;
  }
  if (state_ != State::kReceiving) return actions;
  if (result != CopyResult::kIntact) return fail(copy_error(result), true);
  deadline_ = now + timeouts_.progress;
  if (!commit_) return actions;
  if (copying_ == 0) return check_manifest();
  if (now - renewed_ >= timeouts_.renew) {
    renewed_ = now;
    actions.emplace_back(SendToPeer{protocol::RenewFrame{key_}});
  }
  return actions;
}

ReceiveActions ReceiveHandoff::on_commit(const protocol::CommitFrame& frame, TimePoint now) {
  if (state_ != State::kReceiving || !is_mine(frame.key) || commit_) return {};
  commit_ = frame;
  deadline_ = now + timeouts_.progress;
  renewed_ = now;
  return copying_ == 0 ? check_manifest() : ReceiveActions{};
}

ReceiveActions ReceiveHandoff::check_manifest() {
  const protocol::CommitFrame& frame = *commit_;
  uint64_t expected = 0;
  for (uint32_t layer = 0; layer < shape_.layers(); ++layer)
    expected += blocks_ - first_missing_of(layer);
  const uint64_t bytes = shape_.pages(first_missing_, blocks_) * shape_.page_bytes;
  if (frame.layers != shape_.layers() || frame.blocks != blocks_ ||
      !std::ranges::equal(frame.first_blocks, first_missing_) || frame.bytes != bytes ||
      (covered_ != expected && !faults_.accept_any_copy) || frame.first_tokens.empty() ||
      frame.prompt_tokens != tokens_ || frame.cached_tokens > tokens_) {
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
  actions.emplace_back(SendToPeer{protocol::AckFrame{key_, ranks_.rank}});
  actions.emplace_back(ReceiveFinished{});
  return actions;
}

ReceiveActions ReceiveHandoff::on_abort(const protocol::AbortFrame& frame) {
  ReceiveActions actions;
  if (frame.key.id != key_.id || frame.key.attempt != key_.attempt) return actions;
  const protocol::AbortAckFrame acknowledgement{frame.key, ranks_.rank};
  if (!finished() && state_ != State::kStarting) {
    // Whatever the other side says, it is not the fault of the client that waits here.
    const bool usual = frame.status >= 500 && frame.status <= 599;
    actions =
        fail(Error{usual ? static_cast<int>(frame.status) : 502, frame.code, frame.message}, false);
  }
  // In the copies' draining the sender's pages are still being read.
  if (state_ == State::kDraining && !faults_.release_while_copying) {
    if (farewell_.size() < kMostFarewells) farewell_.emplace_back(acknowledgement);
  } else {
    actions.emplace_back(SendToPeer{acknowledgement});
  }
  return actions;
}

ReceiveActions ReceiveHandoff::on_peer_lost() {
  farewell_.clear();
  if (finished() || state_ == State::kStarting) return {};
  return fail(Error{502, "prefill_lost", "The prefill worker went away during the transfer."},
              false);
}

ReceiveActions ReceiveHandoff::on_cancel(const Error& error) {
  if (finished() || state_ == State::kStarting) return {};
  return fail(error, true);
}

ReceiveActions ReceiveHandoff::on_time(TimePoint now) {
  if (finished() || now < deadline_) return {};
  return fail(
      Error{504, "handoff_timeout", "The prefill worker did not send the prompt's KV in time."},
      true);
}

ReceiveActions ReceiveHandoff::fail(const Error& error, bool tell_peer) {
  ReceiveActions actions;
  releases_ = state_ == State::kReserving || state_ == State::kReceiving;
  if (tell_peer) {
    farewell_.emplace_back(protocol::AbortFrame{key_, static_cast<uint32_t>(error.status),
                                                error.code, error.message, ranks_.rank});
  }
  state_ = State::kDraining;
  const bool drains = copying_ > 0 && !faults_.release_while_copying;
  if (!drains) settle(actions);
  actions.emplace_back(ReceiveFinished{error});
  // Last: what has not begun is answered inside it, and that may be all that this side waits for.
  if (drains) actions.emplace_back(StopCopies{});
  return actions;
}

void ReceiveHandoff::settle(ReceiveActions& actions) {
  if (std::exchange(releases_, false)) actions.emplace_back(ReleasePages{may_be_written_});
  for (auto& frame : farewell_) actions.emplace_back(SendToPeer{std::move(frame)});
  farewell_.clear();
  state_ = copying_ == 0 ? State::kFinished : State::kDraining;
}

}  // namespace tandem::kv
