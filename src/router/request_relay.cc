// The answering half of RequestRun: what a leg answers, on its way to the client.
#include <algorithm>
#include <utility>

#include "api/openai.h"
#include "api/responses.h"
#include "base/reply_text.h"
#include "router/request_id.h"
#include "router/request_run.h"

namespace tandem::router {

namespace {

constexpr size_t kErrorBytes = 1UL << 20;
constexpr size_t kHeldBytes = 64UL << 10;

TimePoint now() { return std::chrono::steady_clock::now(); }

// The model itself has no answer to the request (its numbers are none): any other worker would
// compute the same.
bool is_the_models(const Error& error) {
  return error.status == 500 &&
         (error.code == "non_finite_logits" || error.code == "embedding_not_finite");
}

// The request's own KV memory was not what it should be: the client is told so, and may come again.
bool is_the_memorys(const Error& error) {
  return error.status == 500 && error.code == "kv_integrity";
}

// A worker's words for: the worker of the other leg is gone, frozen, or does not play its part.
bool names_lost_peer(const Error& error) {
  static constexpr std::string_view kCodes[] = {"prefill_lost", "connect_failed", "connect_timeout",
                                                "handoff_timeout"};
  return error.status >= 500 && std::ranges::find(kCodes, error.code) != std::end(kCodes);
}

// What an error object tells, over `error`.
Error with_details(Error error, std::string_view object) {
  const auto json = parse_json(object);
  const JsonValue* const fields = json ? json->find("error") : nullptr;
  const JsonValue* const code = fields == nullptr ? nullptr : fields->find("code");
  const JsonValue* const message = fields == nullptr ? nullptr : fields->find("message");
  if (code != nullptr && code->is_string()) error.code = code->as_string();
  if (message != nullptr && message->is_string()) error.message = message->as_string();
  return error;
}

}  // namespace

// An answer that is not 2xx.
net::asio::awaitable<void> RequestRun::take_refusal(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(kErrorBytes);
  if (!body) co_return leg_died(leg, body.error());
  if (leg.cancelled) co_return;
  const Error error = with_details(
      {head.status, "worker_error", "it answered " + std::to_string(head.status)}, *body);
  // 401 and 403 are about our secret, never about the client.
  const bool refused =
      (head.status >= 400 && head.status < 500 && head.status != 401 && head.status != 403) ||
      is_the_models(error) || is_the_memorys(error);
  if (refused) {
    if (is_the_models(error)) head.headers.set("x-should-retry", "false");
    error_reply_ =
        ErrorReply{leg.dispatch.serial, head.status, std::move(head.headers), std::move(*body)};
  }
  leg_failed(leg,
             refused                  ? LegFailure::kRefused
             : head.status == 503     ? LegFailure::kBusy
             : names_lost_peer(error) ? LegFailure::kLostPeer
                                      : LegFailure::kFailed,
             error);
}

net::asio::awaitable<void> RequestRun::run_answer(LegRun& leg) {
  Result<net::ClientHead> head = co_await leg.call->head();
  if (!head) co_return leg_died(leg, head.error());
  if (head->status != 200) co_return co_await take_refusal(leg, std::move(*head));
  if (head->headers.get("content-type").starts_with("text/event-stream")) {
    co_await relay_stream(leg, std::move(*head));
  } else {
    co_await relay_whole(leg, std::move(*head));
  }
}

// Waits, bounded, for prefill's word; only the frame that carries usage waits for it.
net::asio::awaitable<Result<Terminal>> RequestRun::make_terminal(LegRun& leg, std::string json) {
  const TimePoint until = now() + core_->options.usage_wait;
  while (prefill_pending_ && !leg.cancelled && co_await prefill_settled_.wait_for(until - now())) {
  }
  if (leg.cancelled) co_return make_error(499, "cancelled", "the leg was cancelled");
  const bool pair = placement_.prefill != kNoWorker;
  Result<Terminal> terminal =
      rewrite_terminal(json, pair ? CachedTruth::kPrefill : CachedTruth::kAnswer, prefill_report_,
                       checked_.report ? report() : JsonValue());
  if (terminal) learn(leg, *terminal);
  co_return terminal;
}

JsonValue RequestRun::report() const {
  const auto url = [&](WorkerId worker) {
    return worker == kNoWorker ? JsonValue() : JsonValue::string(core_->registry.url_text(worker));
  };
  JsonValue made = JsonValue::object();
  made.set("kv_bytes", JsonValue::integer(prefill_report_ ? prefill_report_->kv_bytes : 0));
  made.set("prefill_worker", url(placement_.prefill));
  made.set("decode_worker", url(placement_.answer));
  return made;
}

void RequestRun::learn(const LegRun& leg, const Terminal& terminal) {
  summary_.prompt_tokens = terminal.prompt_tokens;
  summary_.cached_tokens = terminal.cached_tokens;
  summary_.completion_tokens = terminal.completion_tokens;
  RouterMetrics& metrics = core_->metrics;
  const RouterMetrics::OfModel& counted = metrics.of_model(checked_.model->id);
  observe::Counter(counted.prompt_tokens).add(static_cast<double>(terminal.prompt_tokens));
  metrics.prefix_queries.add(static_cast<double>(terminal.prompt_tokens));
  metrics.prefix_hits.add(static_cast<double>(terminal.cached_tokens));
  observe::Counter(counted.generation_tokens).add(static_cast<double>(terminal.completion_tokens));
  const ServedModel& model = *checked_.model;
  if (placement_.prefill != kNoWorker) core_->prefixes.insert(checked_.blocks, placement_.prefill);
  // The chain goes on from the prompt's last whole block with the ids whose KV was computed.
  // Several prompts are not worth their ids here.
  if (static_cast<size_t>(checked_.prompt_tokens) != checked_.prompt.size()) return;
  const auto whole = static_cast<std::ptrdiff_t>(checked_.blocks.size()) * model.block_tokens;
  const auto parent =
      checked_.blocks.empty() ? prefix_root(model, checked_) : checked_.blocks.back();
  for (const std::vector<int32_t>& ids : terminal.completion_ids) {
    std::vector<int32_t> tail(checked_.prompt.begin() + whole, checked_.prompt.end());
    tail.insert(tail.end(), ids.begin(), ids.end());
    std::vector<protocol::ContentId> all = checked_.blocks;
    for (const protocol::ContentId& id : protocol::content_ids(parent, tail, model.block_tokens))
      all.push_back(id);
    core_->prefixes.insert(all, leg.dispatch.worker);
  }
}

net::Headers RequestRun::reply_headers(const net::Headers& from) const {
  net::Headers made;
  for (const auto& [name, value] : from) {
    const bool ours = net::equal_ignoring_case(name, "content-length") ||
                      net::equal_ignoring_case(name, kRequestId);
    if (!ours && !net::is_hop_by_hop(name, from)) made.add(name, value);
  }
  return made;
}

net::asio::awaitable<void> RequestRun::relay_whole(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(core_->options.max_answer_bytes);
  if (!body && body.error().code == "answer_too_large") {
    // The request's doing, not the worker's: nobody else need try.
    const Error error = api::answer_too_large();
    error_reply_ =
        ErrorReply{leg.dispatch.serial, error.status, net::error_headers(error), error_body(error)};
    co_return leg_failed(leg, LegFailure::kRefused, error);
  }
  if (!body) co_return leg_died(leg, body.error());
  leg.load.release_queued();
  if (has_member(*body, "tandem")) {
    Result<Terminal> terminal = co_await make_terminal(leg, std::move(*body));
    if (!terminal) co_return leg_failed(leg, LegFailure::kFailed, terminal.error());
    *body = std::move(terminal->json);
  }
  apply(legs_.answer_byte(leg.dispatch.serial));
  if (!legs_.may_answer(leg.dispatch.serial)) co_return;
  core_->registry.succeeded(leg.dispatch.worker);
  first_byte_ = now();
  summary_.status = head.status;
  summary_.first_byte_seconds = to_seconds(first_byte_ - started_);
  stream_finished_ = true;
  co_await responder_.send(head.status, reply_headers(head.headers), std::move(*body));
  apply(legs_.answer_done(leg.dispatch.serial));
}

// A chat stream opens with a chunk that has a role and no text. It is held until something follows,
// because until then another worker can still take over without the client seeing a seam.
bool RequestRun::first_frame_is_empty(const net::SseFrame& frame) const {
  if (!frame.has_data) return true;
  const auto json =
      frame.data.size() > 4096 ? Result<JsonValue>(internal_error("")) : parse_json(frame.data);
  if (!json) return false;
  const JsonValue* const choices = json->find("choices");
  if (choices == nullptr || choices->items().size() != 1) return false;
  const JsonValue& choice = choices->items()[0];
  const JsonValue* const reason = choice.find("finish_reason");
  const JsonValue* const delta = choice.find("delta");
  if (delta == nullptr || (reason != nullptr && !reason->is_null())) return false;
  return std::all_of(delta->members().begin(), delta->members().end(),
                     [](const JsonValue::Member& member) {
                       return member.first == "role" || member.second.is_null() ||
                              (member.second.is_string() && member.second.as_string().empty());
                     });
}

net::asio::awaitable<bool> RequestRun::send_bytes(LegRun& leg, const net::ClientHead& head,
                                                  std::string& out) {
  if (out.empty()) co_return true;
  apply(legs_.answer_byte(leg.dispatch.serial));
  if (!legs_.may_answer(leg.dispatch.serial)) co_return false;
  if (!responder_.started()) {
    leg.load.release_queued();
    first_byte_ = now();
    summary_.status = head.status;
    summary_.first_byte_seconds = to_seconds(first_byte_ - started_);
    core_->metrics.time_to_first_token.observe(summary_.first_byte_seconds);
    if (!co_await responder_.begin_stream(head.status, reply_headers(head.headers)))
      co_return false;
  }
  const Status written = co_await responder_.write(out);
  out.clear();
  co_return written && !legs_.over();
}

net::asio::awaitable<bool> RequestRun::relay_frame(LegRun& leg, net::SseFrame& frame,
                                                   std::string& out) {
  if (!leg.frames_seen && !frame.done()) {
    if (frame.has_data &&
        has_member(frame.data,
                   "error")) {  // it began, and failed before any token: nothing was sent
      const Error error =
          with_details({500, "worker_error", "it failed before its first token"}, frame.data);
      const bool refused = is_the_models(error);
      if (refused) {
        error_reply_ = ErrorReply{leg.dispatch.serial, error.status, net::error_headers(error),
                                  std::move(frame.data)};
        error_reply_->headers.set("x-should-retry", "false");
      }
      leg_failed(leg,
                 refused                  ? LegFailure::kRefused
                 : names_lost_peer(error) ? LegFailure::kLostPeer
                                          : LegFailure::kFailed,
                 error);
      co_return false;
    }
    if (leg.held.size() < kHeldBytes && first_frame_is_empty(frame)) {
      leg.held += frame.raw;
      co_return true;
    }
  }
  if (!leg.frames_seen) {
    leg.frames_seen = true;
    out += std::exchange(leg.held, std::string());
  }
  if (frame.done()) leg.done_seen = true;
  // The worker says itself that it failed: the client reads it as it is, the books say so too.
  if (frame.has_data && frame.data.find("\"error\"") != std::string::npos &&
      has_member(frame.data, "error")) {
    leg.error_seen = true;
  }
  if (frame.has_data && frame.data.find("\"tandem\"") != std::string::npos &&
      has_member(frame.data, "tandem")) {
    Result<Terminal> terminal = co_await make_terminal(leg, std::move(frame.data));
    if (!terminal) {
      leg_failed(leg, LegFailure::kFailed, terminal.error());
      co_return false;
    }
    if (checked_.include_usage || checked_.report) out += sse_frame(terminal->json);
    co_return true;
  }
  out += frame.raw;
  co_return true;
}

namespace {

// Reads the few bytes after [DONE], so that the connection can be used again; a worker that
// withholds them loses it.
net::asio::awaitable<void> read_off(std::shared_ptr<RouterCore> core,
                                    std::unique_ptr<net::ClientCall> call) {
  net::Deadline limit(core->reactor, [&] { call->cancel(); });
  limit.arm(std::chrono::seconds(1));
  co_await call->read_all(kErrorBytes);
}

}  // namespace

net::asio::awaitable<void> RequestRun::relay_stream(LegRun& leg, net::ClientHead head) {
  net::SseFramer framer(core_->options.max_answer_bytes);  // a prompt's logprobs are one frame
  std::string out;
  while (!leg.done_seen) {
    Result<std::string> bytes = co_await leg.call->read_some();
    if (!bytes) co_return leg_died(leg, bytes.error());
    if (bytes->empty())
      co_return leg_died(leg, Error{502, "connection_lost", "its stream ended without [DONE]"});
    if (Status fed = framer.feed(*bytes); !fed)
      co_return leg_failed(leg, LegFailure::kFailed, fed.error());
    while (!leg.done_seen) {
      std::optional<net::SseFrame> frame = framer.next();
      if (!frame) break;
      // Tokens never wait: what came before the frame that waits for prefill's usage goes out
      // first.
      const bool may_wait = prefill_pending_ && frame->data.find("\"tandem\"") != std::string::npos;
      if (may_wait && !co_await send_bytes(leg, head, out)) co_return;
      if (!co_await relay_frame(leg, *frame, out)) co_return;
    }
    if (!co_await send_bytes(leg, head, out)) co_return;
  }
  const double step_time = to_seconds(now() - first_byte_);
  if (summary_.completion_tokens >= 8) {
    const double crowd =
        1 + (core_->ledger.of(leg.dispatch.worker).running - 1) * core_->options.policy.crowding;
    core_->registry.measured_step(
        leg.dispatch.worker,
        step_time / static_cast<double>(summary_.completion_tokens - 1) / crowd);
  }
  if (leg.error_seen) {
    core_->metrics.broken_streams.add();
  } else {
    core_->registry.succeeded(leg.dispatch.worker);
  }
  stream_finished_ = true;
  co_await responder_.finish();
  core_->reactor.spawn(read_off(core_, std::move(leg.call)));
  apply(legs_.answer_done(leg.dispatch.serial));
}

net::asio::awaitable<void> RequestRun::answer_at_last() {
  const Decision last = std::move(*last_);
  RouterMetrics& metrics = core_->metrics;
  switch (last.kind) {
    case Decision::Kind::kRelay:
      summary_.status = error_reply_->status;
      co_await responder_.send(error_reply_->status, reply_headers(error_reply_->headers),
                               std::move(error_reply_->body));
      break;
    case Decision::Kind::kAnswer: {
      summary_.status = last.error.status;
      co_await responder_.send(last.error.status, net::error_headers(last.error),
                               error_body(last.error));
      break;
    }
    case Decision::Kind::kBreak:
      metrics.broken_streams.add();
      if (!stream_finished_) {
        const std::string frames = sse_error(last.error);
        co_await responder_.write(frames);
        co_await responder_.finish();
      }
      break;
    case Decision::Kind::kAbandon:
      metrics.disconnects.add();
      summary_.status = 499;
      break;
    default:
      break;
  }
  metrics.request_latency.observe(to_seconds(now() - started_));
}

}  // namespace tandem::router
