// The answering half of RequestRun: what legs answer, on its way to the client. Streams are in
// stream_relay.cc.
#include <algorithm>
#include <utility>

#include "api/openai.h"
#include "api/responses.h"
#include "base/reply_text.h"
#include "observe/log.h"
#include "router/error_form.h"
#include "router/reply_stream.h"
#include "router/request_id.h"
#include "router/request_run.h"
#include "router/response_routes.h"
#include "router/worker_errors.h"

namespace tandem::router {

namespace {

constexpr size_t kErrorBytes = 1UL << 20;

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

net::asio::awaitable<void> RequestRun::run_prefill(LegRun& leg) {
  Result<net::ClientHead> head = co_await leg.call->head();
  if (!head) co_return leg_died(leg, head.error());
  core_->registry.heard(leg.dispatch.worker);
  summary_.prefill_status = head->status;
  if (head->status != 200) co_return co_await take_refusal(leg, std::move(*head));
  Result<std::string> body = co_await leg.call->read_all(core_->options.max_answer_bytes);
  if (!body) co_return leg_died(leg, body.error());
  if (leg.over()) co_return;
  if (Status taken = take_prefill_reply(leg, *head, std::move(*body)); !taken)
    co_return leg_failed(leg, LegFailure::kFailed, taken.error());
}

// A whole 200 of the prefill leg.
Status RequestRun::take_prefill_reply(LegRun& leg, const net::ClientHead& head, std::string body) {
  TANDEM_TRY(harvested, harvest(connector(), checked_.api, body));
  if (connector().harvest == HarvestKind::kDisaggregatedParams && !harvested.is_answer &&
      harvested.params.empty()) {
    return make_error(502, "bad_response",
                      "its answer to a prefill leg lacks what the decode worker needs");
  }
  const WorkerId worker = leg.dispatch.worker;
  const double seconds = to_seconds(now() - leg.sent);
  const PromptCounts& counts = harvested.truth.counts;
  const int64_t computed =
      counts.prompt.value_or(checked_.prompt_tokens) - counts.cached.value_or(0);
  core_->registry.measured_prefill(worker, placement_.prefill_rank, leg.sent, computed);
  summary_.prefill_seconds = seconds;
  core_->registry.succeeded(worker);
  core_->metrics.leg_ended(core_->registry, worker, Leg::kPrefill, std::nullopt);
  core_->metrics.of_connector(connector()).prefill_seconds.observe(seconds);
  prefill_kv_bytes_ = harvested.kv_bytes;
  core_->metrics.kv_bytes.add(static_cast<double>(harvested.kv_bytes));
  leg.load.release();
  const bool complete = harvested.is_answer && !responder_.started();
  if (complete) {
    ready_reply_ = ReadyReply{leg.dispatch.serial, head.status, head.headers, std::move(body)};
  }
  bool changed = false;
  if (connector().identity == IdentitySource::kPrefillReply) {
    const auto identity = identity_of(harvested);
    changed = identity && core_->registry.identity_seen(worker, placement_.prefill_rank, *identity);
  }
  prompt_truth_ = std::move(harvested.truth);
  if (connector().order == LegOrder::kPrefillFirst) harvest_ = std::move(harvested);
  prefill_pending_ = false;
  prefill_settled_.notify();
  apply(changed ? legs_.prefill_changed(leg.dispatch.serial, now())
                : legs_.prefill_done(leg.dispatch.serial, complete));
  return {};
}

// An answer that is not 2xx.
net::asio::awaitable<void> RequestRun::take_refusal(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(kErrorBytes);
  if (!body) co_return leg_died(leg, body.error());
  if (leg.over()) co_return;
  const Error error = with_details(
      {head.status, "worker_error", "it answered " + std::to_string(head.status)}, *body);
  // Of Tandem's own workers 401 and 403 are about our secret, never about the client.
  const bool clients = head.status >= 400 && head.status < 500 &&
                       (connector().opaque || (head.status != 401 && head.status != 403));
  const bool refused = clients || is_the_models(error) || is_the_memorys(error);
  if (refused) {
    if (is_the_models(error)) head.headers.set("x-should-retry", "false");
    ready_reply_ =
        ReadyReply{leg.dispatch.serial, head.status, std::move(head.headers), std::move(*body)};
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
  core_->registry.heard(leg.dispatch.worker);
  const bool stream = head->headers.get("content-type").starts_with("text/event-stream");
  if (leg.detached) co_return co_await let_attach(leg, stream);
  summary_.answer_status = head->status;
  if (head->status < 200 || head->status > 299)
    co_return co_await take_refusal(leg, std::move(*head));
  leg.rewriter = std::make_unique<ReplyRewriter>(reply_rules());
  if (stream) {
    co_await relay_stream(leg, std::move(*head));
  } else {
    co_await relay_whole(leg, std::move(*head));
  }
}

// A leg that was let go: its first byte says that no KV is on its way any more.
net::asio::awaitable<void> RequestRun::let_attach(LegRun& leg, bool stream) {
  if (stream) (void)co_await leg.call->read_some();
  leg.call->cancel();
}

ReplyRules RequestRun::reply_rules() const {
  ReplyRules rules;
  rules.api = checked_.api;
  rules.pair = pair();
  rules.input_logprobs = checked_.facts.input_logprobs;
  if (checked_.tandem) {
    rules.tandem = true;
    const bool always = checked_.api == Api::kResponses || checked_.api == Api::kMessages;
    rules.hide_usage = !always && !checked_.include_usage && !checked_.report;
    if (checked_.report) rules.tandem_report = report();
    return rules;
  }
  rules.hide_usage = values_.ask_usage && checked_.stream && !checked_.include_usage;
  rules.strip.assign(connector().strip.begin(), connector().strip.end());
  if (checked_.facts.return_token_ids) std::erase(rules.strip, "prompt_token_ids");
  return rules;
}

// The response of a Tandem worker, so that another may go on from it; in a stream's last event or
// whole.
void RequestRun::keep(std::string_view json) const {
  if (!checked_.tandem || checked_.tandem->conversation.empty()) return;
  const auto reply = parse_json(json);
  if (!reply) return;
  const JsonValue* const inner = reply->find("response");
  keep_response(core_->responses, checked_.tenant, checked_.tandem->conversation,
                checked_.tandem->input, inner == nullptr ? *reply : *inner);
}

std::string RequestRun::report() const {
  const auto url = [&](WorkerId worker) {
    return worker == kNoWorker ? JsonValue() : JsonValue::string(core_->registry.url_text(worker));
  };
  JsonValue made = JsonValue::object();
  made.set("kv_bytes", JsonValue::integer(prefill_kv_bytes_));
  made.set("prefill_worker", url(placement_.prefill));
  made.set("decode_worker", url(placement_.answer));
  return made.dump();
}

// Waits, bounded, for prefill's word; only what needs it waits.
net::asio::awaitable<void> RequestRun::await_prefill(LegRun& leg) {
  const TimePoint until = now() + core_->options.usage_wait;
  while (prefill_pending_ && !leg.over() && co_await prefill_settled_.wait_for(until - now())) {
  }
}

void RequestRun::learn_from_answer(LegRun& leg) {
  if (!leg.rewriter || !leg.rewriter->counted()) return;
  const ToldUsage& told = leg.rewriter->told();
  summary_.prompt_tokens = told.prompt_tokens;
  summary_.cached_tokens = told.cached_tokens;
  summary_.completion_tokens = told.completion_tokens;
  RouterMetrics& metrics = core_->metrics;
  const RouterMetrics::OfModel& counted = metrics.of_model(model_->id);
  observe::Counter(counted.prompt_tokens).add(static_cast<double>(told.prompt_tokens));
  core_->outputs.observe(checked_.tenant, stable_hash(model_->id), told.completion_tokens);
  metrics.prefix_queries.add(static_cast<double>(told.prompt_tokens));
  metrics.prefix_hits.add(static_cast<double>(told.cached_tokens));
  observe::Counter(counted.generation_tokens).add(static_cast<double>(told.completion_tokens));
  if (!checked_.tandem) return;
  const TandemRequest& tandem = *checked_.tandem;
  // The chain goes on with the ids whose KV was computed. Several prompts are not worth their ids
  // here.
  if (static_cast<size_t>(checked_.prompt_tokens) != tandem.prompt.size()) return;
  for (const std::vector<int32_t>& ids : leg.rewriter->completion_ids()) {
    const PromptPrefix longer =
        tandem_prefix_after(core_->holders.hasher(), *model_, tandem, checked_.prefix, ids);
    for (const PromptKeys& kind : longer.kinds)
      core_->feeds.holds(leg.dispatch.worker, placement_.answer_rank, kind,
                         checked_.prefix.chain().size());
  }
}

net::Headers RequestRun::reply_headers(const net::Headers& from) const {
  net::Headers made;
  for (const auto& [name, value] : from) {
    const bool ours = net::equal_ignoring_case(name, "content-length") ||
                      net::equal_ignoring_case(name, kRequestId);
    if (!ours && !net::is_hop_by_hop(name, from)) made.add(name, value);
  }
  if (!core_->options.tell_workers || !placement_.found()) return made;
  if (pair()) made.set("x-tandem-prefill-worker", core_->registry.url_text(placement_.prefill));
  made.set("x-tandem-worker", core_->registry.url_text(placement_.answer));
  made.set("x-tandem-cached-tokens", std::to_string(placement_.expected_cached));
  return made;
}

void RequestRun::first_byte(LegRun& leg, int status) {
  leg.load.release_queued();
  first_byte_ = now();
  summary_.status = status;
  summary_.first_byte_seconds = to_seconds(first_byte_ - started_);
  core_->metrics.of_connector(connector()).first_byte.observe(summary_.first_byte_seconds);
  learn_from_request();
  if (!pair() && model_->opaque()) {
    const int64_t computed = checked_.prompt_tokens - placement_.expected_cached;
    core_->registry.measured_prefill(leg.dispatch.worker, placement_.answer_rank, leg.sent,
                                     computed);
  }
  release_request();
}

net::asio::awaitable<void> RequestRun::relay_whole(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(core_->options.max_answer_bytes);
  if (leg.detached) co_return;
  if (!body && body.error().code == "answer_too_large") {
    // The request's doing, not the worker's: nobody else need try.
    const Error error = api::answer_too_large();
    ready_reply_ = ReadyReply{leg.dispatch.serial, error.status, net::error_headers(error),
                              error_text(checked_.api, error)};
    co_return leg_failed(leg, LegFailure::kRefused, error);
  }
  if (!body) co_return leg_died(leg, body.error());
  leg.load.release_queued();
  const auto need = leg.rewriter->need(*body, true);
  if (need == ReplyRewriter::Need::kWait) co_await await_prefill(leg);
  if (leg.over()) co_return;
  if (need != ReplyRewriter::Need::kNothing) {
    // Only now is all known that the report tells.
    if (checked_.report) leg.rewriter = std::make_unique<ReplyRewriter>(reply_rules());
    Result<RewrittenReply> rewritten = leg.rewriter->rewrite(*body, true, truth());
    if (!rewritten) co_return leg_failed(leg, LegFailure::kFailed, rewritten.error());
    if (rewritten->json) *body = std::move(*rewritten->json);
    keep(*body);
  } else if (model_->opaque() && !is_json_object(*body) &&
             head.headers.get("content-type").starts_with("application/json")) {
    co_return leg_failed(leg, LegFailure::kFailed, {502, "bad_response", "its answer is no JSON"});
  }
  apply(legs_.answer_byte(leg.dispatch.serial));
  if (!legs_.may_answer(leg.dispatch.serial)) co_return;
  learn_from_answer(leg);
  core_->registry.succeeded(leg.dispatch.worker);
  core_->metrics.leg_ended(core_->registry, leg.dispatch.worker, Leg::kAnswer, std::nullopt);
  first_byte(leg, head.status);
  stream_finished_ = true;
  co_await responder_.send(head.status, reply_headers(head.headers), std::move(*body));
  apply(legs_.answer_done(leg.dispatch.serial));
}

net::asio::awaitable<void> RequestRun::answer_error(const Error& error) {
  summary_.error = error.code;
  if (responder_.started()) {  // comments went before it
    co_await responder_.write(error_frames(checked_.api, error, told_));
    co_await responder_.finish();
    co_return;
  }
  summary_.status = error.status;
  net::Headers headers = net::error_headers(error);
  co_await responder_.send(error.status, reply_headers(headers), error_text(checked_.api, error));
}

// A leg's own answer, word for word: an error of 4xx, or all of prefill's.
net::asio::awaitable<void> RequestRun::answer_ready(ReadyReply reply) {
  summary_.status = reply.status;
  const bool answer = reply.status < 300;
  if (answer) {
    ReplyRules rules = reply_rules();
    rules.pair = false;
    rules.hide_usage = false;
    ReplyRewriter rewriter(std::move(rules));
    if (auto rewritten = rewriter.rewrite(reply.body, true, nullptr); rewritten && rewritten->json)
      reply.body = std::move(*rewritten->json);
  }
  if (!checked_.stream || (!answer && !responder_.started())) {
    co_await responder_.send(reply.status, reply_headers(reply.headers), std::move(reply.body));
    co_return;
  }
  std::string frames = answer ? stream_of_whole(checked_.api, reply.body, checked_.include_usage)
                              : sse_frame(reply.body) + std::string(kSseDone);
  if (!responder_.started()) {
    net::Headers headers = reply_headers(reply.headers);
    headers.set("Content-Type", "text/event-stream; charset=utf-8");
    if (!co_await responder_.begin_stream(reply.status, std::move(headers))) co_return;
  }
  co_await responder_.write(frames);
  co_await responder_.finish();
}

net::asio::awaitable<void> RequestRun::answer_at_last() {
  const Decision last = std::move(*last_);
  RouterMetrics& metrics = core_->metrics;
  switch (last.kind) {
    case Decision::Kind::kRelay:
      co_await answer_ready(std::move(*ready_reply_));
      break;
    case Decision::Kind::kAnswer:
      co_await answer_error(last.error);
      break;
    case Decision::Kind::kBreak:
      metrics.broken_streams.add();
      summary_.error = last.error.code;
      if (!stream_finished_) {
        co_await responder_.write(error_frames(checked_.api, last.error, told_));
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
