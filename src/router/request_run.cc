#include "router/request_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "api/openai.h"
#include "base/json_splice.h"
#include "observe/log.h"
#include "router/request_id.h"

namespace tandem::router {

namespace {

constexpr size_t kErrorBytes = 1UL << 20;
constexpr int32_t kUsualOutput = 128;
constexpr size_t kAffinityBlocks = 4;

TimePoint now() { return std::chrono::steady_clock::now(); }

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
      started_(now()),
      legs_(core_->options.legs),
      wake_(core_->reactor),
      prefill_settled_(core_->reactor),
      tick_(core_->reactor, [this] { apply(legs_.tick(now())); }),
      deadline_(core_->reactor, [this] { apply(legs_.deadline_passed()); }) {
  const std::vector<protocol::ContentId>& blocks = checked_.blocks;
  if (!checked_.affinity_key.empty()) {
    affinity_ = stable_hash(checked_.affinity_key);
  } else if (!blocks.empty()) {
    affinity_ = stable_hash(blocks[std::min(blocks.size(), kAffinityBlocks) - 1].hex());
  } else {
    affinity_ = stable_hash(checked_.ids_json);
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

void RequestRun::stop() {
  apply(legs_.stop({503, "shutting_down", "the server is shutting down; send the request again"}));
}

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
  made.prompt_tokens = static_cast<int32_t>(
      std::min<int64_t>(checked_.prompt_tokens, std::numeric_limits<int32_t>::max()));
  made.one_worker = checked_.one_worker;
  made.expected_output =
      checked_.max_tokens > 0 ? std::min(checked_.max_tokens, 2 * kUsualOutput) : kUsualOutput;
  made.block_tokens = checked_.model->block_tokens;
  made.affinity = affinity_;
  made.excluded = legs_.excluded();
  return made;
}

void RequestRun::place_all() {
  const auto held = core_->prefixes.match(checked_.blocks, core_->registry.size());
  const auto snapshots = core_->registry.snapshots(*checked_.model, core_->ledger, held);
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
  const auto held = core_->prefixes.match(checked_.blocks, core_->registry.size());
  const WorkerId worker =
      choose_decode(core_->registry.snapshots(*checked_.model, core_->ledger, held),
                    placement_request(), core_->options.policy, placement_.prefill);
  if (worker == kNoWorker) return apply(legs_.not_placed());
  core_->metrics.answer_retries.add();
  placement_.answer = worker;
  apply(legs_.placed_answer(worker));
}

Load RequestRun::load_of(const Decision& decision) const {
  const int64_t prompt = checked_.prompt_tokens;
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
  envelope.context.salt = checked_.salt;
  envelope.context.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(time_left());
  envelope.context.trace = checked_.traceparent;
  envelope.report_tokens = true;
  // The ids are spliced as text: a long prompt as a tree of values would cost more than the rest of
  // the request.
  const auto with_ids = json_insert_member(api::envelope_to_json(envelope).dump(),
                                           "prompt_token_ids", checked_.ids_json);
  const auto body = with_ids ? json_insert_member(request_.body, "tandem", *with_ids) : with_ids;
  return body ? *body : std::string();  // both texts were parsed before
}

net::ClientRequest RequestRun::leg_request(const Decision& decision) const {
  const net::Url& url = core_->registry.url(decision.worker);
  net::ClientRequest made;
  made.method = "POST";
  made.host = url.host;
  made.port = url.port;
  made.tls = url.tls;
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

}  // namespace tandem::router
