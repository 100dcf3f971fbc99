#include "router/request_run.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "api/openai.h"
#include "base/json_splice.h"
#include "observe/log.h"

namespace tandem::router {

namespace {

constexpr size_t kErrorBytes = 1UL << 20;
constexpr int32_t kUsualOutput = 128;
constexpr size_t kAffinityBlocks = 4;

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out = "[";
  char digits[16];
  for (const int32_t id : ids) {
    if (out.size() > 1) out += ',';
    out.append(digits,
               static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, id).ptr - digits));
  }
  return out += ']';
}

// Fields of the client that describe its connection to us, or that only we may set.
bool forwarded(const std::string& name, const net::Headers& headers) {
  static constexpr std::string_view kOurs[] = {"host", "content-length", "accept-encoding",
                                               "expect", "x-request-id"};
  for (const std::string_view ours : kOurs) {
    if (net::equal_ignoring_case(name, ours)) return false;
  }
  if (name.size() >= 9 &&
      net::equal_ignoring_case(std::string_view(name).substr(0, 9), "x-tandem-"))
    return false;
  return !net::is_hop_by_hop(name, headers);
}

}  // namespace

RequestRun::RequestRun(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                       net::HttpResponder& responder, CheckedRequest checked)
    : core_(std::move(core)),
      request_(request),
      responder_(responder),
      checked_(std::move(checked)),
      ids_json_(ids_text(checked_.prompt)),
      started_(now()),
      legs_(core_->options.legs),
      wake_(core_->reactor),
      prefill_settled_(core_->reactor),
      tick_(core_->reactor, [this] { apply(legs_.tick(now())); }),
      deadline_(core_->reactor, [this] { apply(legs_.deadline_passed()); }) {
  const ServedModel& model = *checked_.model;
  blocks_ = protocol::content_ids(protocol::root_content_id(model.lineage, model.block_tokens, ""),
                                  checked_.prompt, model.block_tokens);
  if (!checked_.affinity_key.empty()) {
    affinity_ = stable_hash(checked_.affinity_key);
  } else if (!blocks_.empty()) {
    affinity_ = stable_hash(blocks_[std::min(blocks_.size(), kAffinityBlocks) - 1].hex());
  } else {
    affinity_ = stable_hash(ids_json_);
  }
  core_->runs.insert(this);
}

RequestRun::~RequestRun() { core_->runs.erase(this); }

net::asio::awaitable<void> RequestRun::serve() {
  const auto self = shared_from_this();
  deadline_.arm(core_->options.request_timeout);
  responder_.on_disconnect([this] { apply(legs_.client_gone()); });
  apply(legs_.start());
  // The legs' coroutines write to the responder: it is ours again when the last has ended.
  while (!last_ || !running_.empty()) co_await wake_.wait();
  deadline_.disarm();
  tick_.disarm();
  co_await answer_at_last();
}

void RequestRun::worker_down(WorkerId worker) { apply(legs_.worker_down(worker, now())); }

void RequestRun::apply(Decisions decisions) {
  queue_.insert(queue_.end(), std::make_move_iterator(decisions.begin()),
                std::make_move_iterator(decisions.end()));
  if (applying_) return;  // the outer call goes on with what was added
  applying_ = true;
  for (size_t i = 0; i < queue_.size(); ++i) {
    Decision decision = std::move(queue_[i]);
    act(decision);
  }
  queue_.clear();
  applying_ = false;
  const TimePoint at = legs_.wakes_at();
  if (at == TimePoint::max()) {
    tick_.disarm();
  } else {
    tick_.arm(std::max(at - now(), Duration(1)));
  }
}

void RequestRun::act(Decision& decision) {
  switch (decision.kind) {
    case Decision::Kind::kPlaceAll:
      return place_all();
    case Decision::Kind::kPlaceAnswer:
      return place_answer();
    case Decision::Kind::kDispatch:
      return dispatch(decision);
    case Decision::Kind::kCancel:
      return cancel(decision.serial);
    case Decision::Kind::kCharge:
      return core_->registry.charge(decision.worker);
    default:
      last_ = std::move(decision);
      wake_.notify();
  }
}

PlacementRequest RequestRun::placement_request() const {
  PlacementRequest made;
  made.prompt_tokens = static_cast<int32_t>(checked_.prompt.size());
  made.expected_output =
      checked_.max_tokens > 0 ? std::min(checked_.max_tokens, 2 * kUsualOutput) : kUsualOutput;
  made.block_tokens = checked_.model->block_tokens;
  made.affinity = affinity_;
  made.excluded = legs_.excluded();
  return made;
}

void RequestRun::place_all() {
  const auto held = core_->prefixes.match(blocks_, core_->registry.size());
  const auto snapshots = core_->registry.snapshots(core_->ledger, held);
  const bool again = !handoff_id_.empty();
  placement_ = choose_placement(snapshots, placement_request(), core_->options.policy);
  if (!placement_.found()) return apply(legs_.not_placed());
  if (again) core_->metrics.prefill_retries.add();
  if (placement_.local_prefill) core_->metrics.local_prefills.add();
  handoff_id_ = mint_id();
  prefill_report_.reset();
  prefill_pending_ = placement_.prefill != kNoWorker;
  apply(legs_.placed(placement_));
}

void RequestRun::place_answer() {
  const auto held = core_->prefixes.match(blocks_, core_->registry.size());
  const WorkerId worker = choose_decode(core_->registry.snapshots(core_->ledger, held),
                                        placement_request(), core_->options.policy);
  if (worker == kNoWorker) return apply(legs_.not_placed());
  core_->metrics.answer_retries.add();
  placement_.answer = worker;
  apply(legs_.placed_answer(worker));
}

Load RequestRun::load_of(const Decision& decision) const {
  const auto prompt = static_cast<int64_t>(checked_.prompt.size());
  const bool computes = decision.leg == Leg::kPrefill || placement_.prefill == kNoWorker;
  const int64_t output = decision.leg == Leg::kAnswer ? placement_request().expected_output : 0;
  return {1, computes ? prompt - placement_.expected_cached : 0, prompt + output};
}

void RequestRun::dispatch(const Decision& decision) {
  auto leg = std::make_shared<LegRun>();
  leg->dispatch = decision;
  leg->sent = now();
  leg->queued_before = core_->ledger.of(decision.worker).queued_tokens;
  leg->load = core_->ledger.take(decision.worker, load_of(decision));
  leg->call = core_->client.call(leg_request(decision),
                                 {std::chrono::seconds(2), time_left() + std::chrono::seconds(1),
                                  time_left() + std::chrono::seconds(1)});
  (decision.leg == Leg::kPrefill ? summary_.prefill : summary_.answer) = decision.worker;
  running_.push_back(leg);
  core_->reactor.spawn(run_leg(shared_from_this(), std::move(leg)));
}

void RequestRun::cancel(uint32_t serial) {
  for (const auto& leg : running_) {
    if (leg->dispatch.serial != serial) continue;
    leg->cancelled = true;
    if (leg->call) leg->call->cancel();
  }
}

Duration RequestRun::time_left() const {
  return std::max<Duration>(started_ + core_->options.request_timeout - now(),
                            std::chrono::milliseconds(1));
}

std::string RequestRun::leg_body(const Decision& decision) const {
  api::TandemEnvelope envelope;
  if (placement_.prefill != kNoWorker) {
    envelope.leg =
        decision.leg == Leg::kPrefill ? protocol::LegKind::kPrefill : protocol::LegKind::kDecode;
    envelope.handoff.handoff_id = handoff_id_;
    envelope.handoff.attempt = decision.attempt;
    envelope.handoff.prefill_address = core_->registry.info(placement_.prefill).handoff_address;
  }
  envelope.context.request_id = checked_.request_id;
  envelope.context.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(time_left());
  envelope.context.trace = checked_.traceparent;
  envelope.report_tokens = true;
  // The ids are spliced as text: a long prompt as a tree of values would cost more than the rest of
  // the request.
  const auto with_ids =
      json_insert_member(api::envelope_to_json(envelope).dump(), "prompt_token_ids", ids_json_);
  const auto body = with_ids ? json_insert_member(request_.body, "tandem", *with_ids) : with_ids;
  return body ? *body : std::string();  // both texts were parsed before
}

net::ClientRequest RequestRun::leg_request(const Decision& decision) const {
  const net::Url& url = core_->registry.url(decision.worker);
  net::ClientRequest made;
  made.method = "POST";
  made.host = url.host;
  made.port = url.port;
  made.target = url.base + request_.path;
  for (const auto& [name, value] : request_.headers) {
    if (forwarded(name, request_.headers)) made.headers.add(name, value);
  }
  made.headers.add(std::string(kRequestId), checked_.request_id);
  if (!core_->options.secret.empty()) made.headers.add("x-tandem-auth", core_->options.secret);
  made.body = leg_body(decision);
  return made;
}

net::asio::awaitable<void> RequestRun::run_leg(std::shared_ptr<RequestRun> self,
                                               std::shared_ptr<LegRun> leg) {
  if (!leg->cancelled) {
    if (leg->dispatch.leg == Leg::kPrefill) {
      co_await self->run_prefill(*leg);
    } else {
      co_await self->run_answer(*leg);
    }
  }
  leg->load.release();
  std::erase(self->running_, leg);
  self->wake_.notify();
}

void RequestRun::leg_failed(LegRun& leg, LegFailure failure, const Error& error) {
  if (leg.cancelled) return;
  if (leg.dispatch.leg == Leg::kPrefill && failure != LegFailure::kRefused) {
    prefill_pending_ = false;
    prefill_settled_.notify();
  }
  leg.load.release();  // before another placement looks at the loads
  apply(legs_.failed(leg.dispatch.serial, failure, error, now()));
}

void RequestRun::leg_died(LegRun& leg, const Error& error) {
  if (leg.cancelled) return;
  const WorkerId worker = leg.dispatch.worker;
  observe::log_warning("request {}: {} leg on {} died: {}", checked_.request_id,
                       leg.dispatch.leg == Leg::kPrefill ? "prefill" : "answer",
                       core_->registry.url_text(worker), error.code);
  leg_failed(leg, LegFailure::kDied, error);
  core_->registry.leg_died(worker, error.code);
}

// An answer that is not 2xx.
net::asio::awaitable<void> RequestRun::take_refusal(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(kErrorBytes);
  if (!body) co_return leg_died(leg, body.error());
  if (leg.cancelled) co_return;
  Error error{head.status, "worker_error", "it answered " + std::to_string(head.status)};
  if (const auto json = parse_json(*body)) {
    const JsonValue* const fields = json->find("error");
    const JsonValue* const code = fields == nullptr ? nullptr : fields->find("code");
    const JsonValue* const message = fields == nullptr ? nullptr : fields->find("message");
    if (code != nullptr && code->is_string()) error.code = code->as_string();
    if (message != nullptr && message->is_string()) error.message = message->as_string();
  }
  // 401 and 403 are about our secret, never about the client.
  const bool refused =
      head.status >= 400 && head.status < 500 && head.status != 401 && head.status != 403;
  if (refused)
    error_reply_ =
        ErrorReply{leg.dispatch.serial, head.status, std::move(head.headers), std::move(*body)};
  leg_failed(leg,
             refused              ? LegFailure::kRefused
             : head.status == 503 ? LegFailure::kBusy
                                  : LegFailure::kFailed,
             error);
}

net::asio::awaitable<void> RequestRun::run_prefill(LegRun& leg) {
  Result<net::ClientHead> head = co_await leg.call->head();
  if (!head) co_return leg_died(leg, head.error());
  if (head->status != 200) co_return co_await take_refusal(leg, std::move(*head));
  Result<std::string> body = co_await leg.call->read_all(kErrorBytes);
  if (!body) co_return leg_died(leg, body.error());
  Result<PrefillReport> report = parse_prefill_report(*body);
  if (!report) co_return leg_failed(leg, LegFailure::kFailed, report.error());
  if (leg.cancelled) co_return;
  const double seconds = to_seconds(now() - leg.sent);
  const int64_t computed = report->prompt_tokens - report->cached_tokens;
  if (computed >= 64 && seconds > 0) {
    core_->registry.measured_prefill(leg.dispatch.worker,
                                     static_cast<double>(leg.queued_before + computed) / seconds);
  }
  core_->registry.succeeded(leg.dispatch.worker);
  core_->metrics.kv_bytes.add(static_cast<double>(report->kv_bytes));
  prefill_report_ = *report;
  prefill_pending_ = false;
  leg.load.release();
  prefill_settled_.notify();
  apply(legs_.prefill_done(leg.dispatch.serial));
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
  metrics.prompt_tokens.add(static_cast<double>(terminal.prompt_tokens));
  metrics.prefix_queries.add(static_cast<double>(terminal.prompt_tokens));
  metrics.prefix_hits.add(static_cast<double>(terminal.cached_tokens));
  metrics.generation_tokens.add(static_cast<double>(terminal.completion_tokens));
  const ServedModel& model = *checked_.model;
  if (placement_.prefill != kNoWorker) core_->prefixes.insert(blocks_, placement_.prefill);
  std::vector<int32_t> all = checked_.prompt;
  all.insert(all.end(), terminal.completion_ids.begin(), terminal.completion_ids.end());
  if (!terminal.completion_ids.empty()) all.pop_back();  // the last token's KV was never computed
  const auto root = protocol::root_content_id(model.lineage, model.block_tokens, "");
  core_->prefixes.insert(protocol::content_ids(root, all, model.block_tokens), leg.dispatch.worker);
}

net::Headers RequestRun::reply_headers(const net::Headers& from) const {
  net::Headers made;
  for (const auto& [name, value] : from) {
    const bool ours = net::equal_ignoring_case(name, "content-length") ||
                      net::equal_ignoring_case(name, kRequestId);
    if (!ours && !net::is_hop_by_hop(name, from)) made.add(name, value);
  }
  made.add(std::string(kRequestId), checked_.request_id);
  return made;
}

net::asio::awaitable<void> RequestRun::relay_whole(LegRun& leg, net::ClientHead head) {
  Result<std::string> body = co_await leg.call->read_all(core_->options.max_answer_bytes);
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
      Error error{502, "worker_error", "it failed before its first token"};
      if (const auto json = parse_json(frame.data)) {
        const JsonValue* const message = json->find("error")->find("message");
        if (message != nullptr && message->is_string()) error.message = message->as_string();
      }
      leg_failed(leg, LegFailure::kFailed, error);
      co_return false;
    }
    if (leg.held.size() < (64UL << 10) && first_frame_is_empty(frame)) {
      leg.held += frame.raw;
      co_return true;
    }
  }
  if (!leg.frames_seen) {
    leg.frames_seen = true;
    out += std::exchange(leg.held, std::string());
  }
  if (frame.done()) leg.done_seen = true;
  if (frame.has_data && frame.data.find("\"tandem\"") != std::string::npos &&
      has_member(frame.data, "tandem")) {
    Result<Terminal> terminal = co_await make_terminal(leg, std::move(frame.data));
    if (!terminal) {
      leg_failed(leg, LegFailure::kFailed, terminal.error());
      co_return false;
    }
    if (checked_.include_usage || checked_.report) out += net::sse_frame(terminal->json);
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
  net::SseFramer framer;
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
  core_->registry.succeeded(leg.dispatch.worker);
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
      net::Headers headers{{"Content-Type", "application/json"},
                           {std::string(kRequestId), checked_.request_id}};
      if (last.error.status == 503) headers.add("Retry-After", "1");
      summary_.status = last.error.status;
      co_await responder_.send(last.error.status, std::move(headers), api::error_body(last.error));
      break;
    }
    case Decision::Kind::kBreak:
      metrics.broken_streams.add();
      if (!stream_finished_) {
        const std::string frames = api::sse_error(last.error);
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
