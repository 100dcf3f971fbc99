// Streams on their way through RequestRun: cut into frames (never copied unless something in one
// changes), held until their first content, ended once and well-formed. What stands in memory for a
// stream is one read of its worker's connection and one unfinished frame; nothing more is read
// while the client has not taken what it got.
#include <utility>

#include "base/reply_text.h"
#include "router/reply_stream.h"
#include "router/request_run.h"
#include "router/worker_errors.h"

namespace tandem::router {

namespace {

constexpr size_t kHeldBytes = 64UL << 10;
constexpr size_t kFrameBytes = 8UL << 20;  // of an engine's; a Tandem worker's is an answer's bound
constexpr size_t kLargeFrame = 64UL << 10;
constexpr size_t kErrorBytes = 1UL << 20;
constexpr std::string_view kComment = ": keep-alive\n\n";

TimePoint now() { return std::chrono::steady_clock::now(); }

// Reads the few bytes after [DONE], so that the connection can be used again; a worker that
// withholds them loses it.
net::asio::awaitable<void> read_off(std::shared_ptr<RouterCore> core,
                                    std::unique_ptr<net::ClientCall> call) {
  net::Deadline limit(core->reactor, [&] { call->cancel(); });
  limit.arm(std::chrono::seconds(1));
  co_await call->read_all(kErrorBytes);
}

}  // namespace

// Frames of a stream whose client has had nothing yet. A stream's opening has no content (a role,
// an empty message); it is held until something follows, because until then another worker can
// still take over without the client seeing a seam.
RequestRun::FrameFate RequestRun::judge_opening(LegRun& leg, const net::SseView& frame) {
  if (frame.has_data && is_error_object(frame.data)) {  // it failed before any token
    const Error error =
        with_details({500, "worker_error", "it failed before its first token"}, frame.data);
    const bool refused = is_the_models(error);
    if (refused) {
      ready_reply_ = ReadyReply{leg.dispatch.serial, error.status, net::error_headers(error),
                                std::string(frame.data)};
      ready_reply_->headers.set("x-should-retry", "false");
    }
    leg_failed(leg,
               refused                  ? LegFailure::kRefused
               : names_lost_peer(error) ? LegFailure::kLostPeer
                                        : LegFailure::kFailed,
               error);
    return FrameFate::kFailed;
  }
  const bool opening = !frame.has_data || is_opening(frame.data);
  return leg.held.size() < kHeldBytes && opening ? FrameFate::kNothing : FrameFate::kRelay;
}

net::asio::awaitable<RequestRun::FrameFate> RequestRun::judge_frame(LegRun& leg,
                                                                    const net::SseView& frame,
                                                                    ReplyRewriter::Need need,
                                                                    std::string& changed) {
  const bool opening = !leg.frames_seen && !frame.done();
  FrameFate first = FrameFate::kRelay;
  if (opening) first = judge_opening(leg, frame);
  if (first == FrameFate::kFailed) co_return first;
  FrameFate fate = FrameFate::kRelay;
  if (need != ReplyRewriter::Need::kNothing) {
    if (frame.raw.size() > kLargeFrame) core_->metrics.large_frames.add();
    if (need == ReplyRewriter::Need::kWait) co_await await_prefill(leg);
    if (leg.over()) co_return FrameFate::kFailed;
    // Only now is all known that the report tells.
    if (checked_.report) leg.rewriter = std::make_unique<ReplyRewriter>(reply_rules());
    auto rewritten = leg.rewriter->rewrite(frame.data, false, truth());
    if (!rewritten) {
      leg_failed(leg, LegFailure::kFailed, rewritten.error());
      co_return FrameFate::kFailed;
    }
    if (rewritten->drop) co_return FrameFate::kNothing;
    if (rewritten->json) {
      fate = FrameFate::kChanged;
      changed = replace_sse_data(frame.raw, *rewritten->json);
      if (is_last_event(checked_.api, *rewritten->json)) keep(*rewritten->json);
    }
  }
  if (opening && first == FrameFate::kNothing) {
    leg.held += fate == FrameFate::kChanged ? std::string_view(changed) : frame.raw;
    co_return FrameFate::kNothing;
  }
  note_frame(leg, frame);
  if (leg.held.empty()) co_return fate;
  changed.insert(0, leg.held);
  if (fate == FrameFate::kRelay) changed = leg.held + std::string(frame.raw);
  leg.held = std::string();
  co_return FrameFate::kChanged;
}

// Of a frame that goes to the client.
void RequestRun::note_frame(LegRun& leg, const net::SseView& frame) const {
  leg.frames_seen = true;
  if (frame.done()) leg.done_seen = true;
  if (is_last_event(checked_.api, frame.data)) leg.end_seen = true;
  // The worker says itself that it failed: the client reads it as it is, the books say so too.
  if (frame.has_data && is_error_object(frame.data)) leg.error_seen = true;
}

net::asio::awaitable<void> RequestRun::writer_free() {
  while (writing_) co_await written_.wait();
}

// Whether this leg may give bytes to the client now, before it does.
net::asio::awaitable<bool> RequestRun::take_turn(LegRun& leg, const net::ClientHead& head) {
  co_await writer_free();
  const bool first = !legs_.began();
  apply(legs_.answer_byte(leg.dispatch.serial));
  if (!legs_.may_answer(leg.dispatch.serial)) co_return false;
  if (first) {
    first_byte(leg, head.status);
    core_->metrics.time_to_first_token.observe(summary_.first_byte_seconds);
  }
  co_return true;
}

net::asio::awaitable<bool> RequestRun::send_bytes(LegRun& leg, const net::ClientHead& head,
                                                  std::string_view out) {
  if (out.empty()) co_return true;
  if (!co_await take_turn(leg, head)) co_return false;
  writing_ = true;
  const Status sent = responder_.started() ? co_await responder_.write(out)
                                           : co_await responder_.begin_stream(
                                                 head.status, reply_headers(head.headers), out);
  const bool good = sent.has_value();
  if (checked_.api == Api::kResponses) told_.learn(out);
  writing_ = false;
  written_.notify();
  co_return good && !legs_.over();
}

// What was taken of one read: unchanged frames as they lie, or a text once something changed.
struct RequestRun::Outgoing {
  static constexpr size_t kRoom = 256;  // for what mostly follows
  std::string_view untouched;
  std::string text;
  std::string_view view() const { return text.empty() ? untouched : std::string_view(text); }
  void add(std::string_view raw) {
    if (!text.empty()) {
      text += raw;
    } else if (untouched.empty()) {
      untouched = raw;
    } else {
      untouched = {untouched.data(), untouched.size() + raw.size()};
    }
  }
  void add_changed(std::string_view bytes) {
    if (text.empty()) {
      text.reserve(untouched.size() + bytes.size() + kRoom);
      text = untouched;
    }
    text += bytes;
    untouched = {};
  }
  void skip() {  // what follows does not lie behind what came
    if (!untouched.empty()) add_changed({});
  }
  void clear() {
    untouched = {};
    text.clear();
  }
};

// What is left in `out` goes out with the end of the stream.
net::asio::awaitable<bool> RequestRun::relay_frames(LegRun& leg, const net::ClientHead& head,
                                                    net::SseFramer& framer, Outgoing& out) {
  std::string changed;
  while (!leg.done_seen) {
    const std::optional<net::SseView> frame = framer.next_view();
    if (!frame) break;
    const auto need =
        frame->has_data ? leg.rewriter->need(frame->data, false) : ReplyRewriter::Need::kNothing;
    if (need == ReplyRewriter::Need::kNothing && leg.frames_seen && leg.held.empty()) {
      note_frame(leg, *frame);  // nearly every frame
      out.add(frame->raw);
      continue;
    }
    // Tokens never wait: what came before the frame that waits for prefill's word goes out first.
    if (need == ReplyRewriter::Need::kWait && prefill_pending_) {
      if (!co_await send_bytes(leg, head, out.view())) co_return false;
      out.clear();
    }
    switch (co_await judge_frame(leg, *frame, need, changed)) {
      case FrameFate::kRelay:
        out.add(frame->raw);
        break;
      case FrameFate::kChanged:
        out.add_changed(changed);
        break;
      case FrameFate::kNothing:
        out.skip();
        break;
      case FrameFate::kFailed:
        co_return false;
    }
  }
  if (leg.done_seen) co_return true;
  const bool sent = co_await send_bytes(leg, head, out.view());
  out.clear();
  co_return sent;
}

net::asio::awaitable<void> RequestRun::relay_stream(LegRun& leg, net::ClientHead head) {
  net::SseFramer framer(model_->opaque() ? kFrameBytes : core_->options.max_answer_bytes);
  Outgoing out;
  while (!leg.done_seen) {
    framer.trim();
    const Buffered held(core_->metrics, framer.buffered());
    Result<std::string> bytes = co_await leg.call->read_some();
    if (bytes) core_->registry.heard(leg.dispatch.worker);
    if (leg.detached) co_return leg.call->cancel();
    if (!bytes || bytes->empty()) {
      // Its last event came, or its own word for why there is none.
      if ((leg.end_seen && framer.buffered() == 0) || leg.error_seen) break;
      co_return leg_died(
          leg, bytes ? Error{502, "connection_lost", "its stream ended too early"} : bytes.error());
    }
    beat_later();
    if (Status fed = framer.take(std::move(*bytes)); !fed)
      co_return leg_failed(leg, LegFailure::kFailed, fed.error());
    if (!co_await relay_frames(leg, head, framer, out)) co_return;
  }
  // An error ends a stream as [DONE] does, but engines differ in whether they say both.
  if (leg.error_seen && !leg.done_seen && ends_with_done(checked_.api)) out.add_changed(kSseDone);
  co_await finish_stream(leg, head, out.view());
}

net::asio::awaitable<void> RequestRun::finish_stream(LegRun& leg, const net::ClientHead& head,
                                                     std::string_view last) {
  if (!last.empty() && !co_await take_turn(leg, head)) co_return;
  if (leg.over() || !legs_.may_answer(leg.dispatch.serial)) co_return;
  learn_from_answer(leg);
  const double step_time = to_seconds(now() - first_byte_);
  if (summary_.completion_tokens >= 8) {
    const Load& load =
        core_->ledger.of(leg.dispatch.worker, static_cast<uint32_t>(placement_.answer_rank));
    const double crowd = 1 + (load.running - 1) * core_->options.policy.crowding;
    core_->registry.measured_step(
        leg.dispatch.worker,
        step_time / static_cast<double>(summary_.completion_tokens - 1) / crowd);
  }
  if (leg.error_seen) {
    core_->metrics.broken_streams.add();
    summary_.error = "worker_error";
  } else {
    core_->registry.succeeded(leg.dispatch.worker);
  }
  core_->metrics.leg_ended(core_->registry, leg.dispatch.worker, Leg::kAnswer,
                           leg.error_seen ? std::optional(LegFailure::kFailed) : std::nullopt);
  co_await writer_free();
  stream_finished_ = true;
  if (responder_.started()) {
    co_await responder_.finish(last);
  } else {
    co_await responder_.whole_stream(head.status, reply_headers(head.headers), last);
  }
  if (!leg.call->finish()) core_->reactor.spawn(read_off(core_, std::move(leg.call)));
  apply(legs_.answer_done(leg.dispatch.serial));
}

void RequestRun::beat_later() {
  if (core_->options.heartbeat > Duration::zero() && checked_.stream && serving_)
    heartbeat_.arm(core_->options.heartbeat);
}

// A comment while nothing comes, so that proxies between us and the client do not give up. It is no
// answer yet: until the first frame the request may still be placed again.
net::asio::awaitable<void> RequestRun::beat(std::shared_ptr<RequestRun> self) {
  if (!self->serving_ || self->legs_.over() || self->stream_finished_) co_return;
  if (!self->writing_) {
    self->writing_ = true;
    if (self->responder_.started()) {
      (void)co_await self->responder_.write(kComment);
    } else {
      self->summary_.status = 200;
      net::Headers headers = self->reply_headers({});
      headers.set("Content-Type", "text/event-stream; charset=utf-8");
      (void)co_await self->responder_.begin_stream(200, std::move(headers), kComment);
    }
    self->writing_ = false;
    self->written_.notify();
  }
  self->beat_later();
}

}  // namespace tandem::router
