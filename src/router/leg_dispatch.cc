// The sending half of RequestRun: legs on their way to workers, and how they are called back.
#include <algorithm>
#include <utility>

#include "api/envelope.h"
#include "base/json_splice.h"
#include "observe/log.h"
#include "router/request_id.h"
#include "router/request_run.h"

namespace tandem::router {

namespace {

constexpr Duration kAbortTime = std::chrono::seconds(5);
constexpr Duration kConnectTime = std::chrono::seconds(2);
constexpr size_t kReplyBytes = 1UL << 20;

TimePoint now() { return std::chrono::steady_clock::now(); }

// Fields of the client that describe its connection to us, or that only we may set.
bool forwarded(std::string_view name, const net::Headers& headers) {
  static constexpr std::string_view kOurs[] = {"host",   "content-length", "accept-encoding",
                                               "expect", "x-request-id",   "traceparent"};
  for (const std::string_view ours : kOurs) {
    if (net::equal_ignoring_case(name, ours)) return false;
  }
  if (name.size() >= 9 && net::equal_ignoring_case(name.substr(0, 9), "x-tandem-")) return false;
  return !net::is_hop_by_hop(name, headers);
}

bool carries_key(std::string_view name) {
  return net::equal_ignoring_case(name, "authorization") ||
         net::equal_ignoring_case(name, "x-api-key");
}

// Tells an engine to stop, besides the closed connection. Nobody waits for it.
net::asio::awaitable<void> call_abort(std::shared_ptr<RouterCore> core, net::ClientRequest call) {
  const auto answer = co_await net::fetch(core->client, std::move(call),
                                          {kAbortTime, kAbortTime, kAbortTime}, kReplyBytes);
  core->metrics.count_abort(answer && answer->status < 300);
}

}  // namespace

LegPart RequestRun::part_of(const Decision& decision) const {
  if (!pair()) return LegPart::kAlone;
  return decision.leg == Leg::kPrefill ? LegPart::kPrefill : LegPart::kDecode;
}

void RequestRun::dispatch(const Decision& decision) {
  if (decision.leg == Leg::kAnswer) answer_load_.release();
  auto leg = std::make_shared<LegRun>();
  leg->dispatch = decision;
  leg->sent = now();
  const int32_t rank = rank_of(decision.leg);
  leg->load = core_->ledger.take(decision.worker, load_of(decision), static_cast<uint32_t>(rank));
  (decision.leg == Leg::kPrefill ? summary_.prefill : summary_.answer) = decision.worker;
  Result<net::ClientRequest> request =
      leg_request(part_of(decision), decision.worker, decision.attempt);
  if (!request) return leg_failed(*leg, LegFailure::kFailed, request.error());
  leg->rid = values_.rid;
  leg->call = core_->client.call(
      std::move(*request),
      {kConnectTime, time_left() + std::chrono::seconds(1), time_left() + std::chrono::seconds(1)});
  running_.push_back(leg);
  core_->reactor.spawn(run_leg(shared_from_this(), std::move(leg)));
}

void RequestRun::cancel(uint32_t serial) {
  for (const auto& leg : running_) {
    if (leg->dispatch.serial != serial || leg->over()) continue;
    leg->cancelled = true;
    if (leg->call) leg->call->cancel();
    core_->metrics.leg_cancelled(core_->registry, leg->dispatch.worker, leg->dispatch.leg);
    abort_engine(*leg);
  }
}

// KV may be on its way to it: it is closed when that is over, which its first byte shows.
void RequestRun::detach(uint32_t serial) {
  for (const auto& leg : running_) {
    if (leg->dispatch.serial != serial || leg->over()) continue;
    leg->detached = true;
    leg->limit =
        std::make_unique<net::Deadline>(core_->reactor, [leg = std::weak_ptr<LegRun>(leg)] {
          if (const auto alive = leg.lock()) alive->call->cancel();
        });
    leg->limit->arm(core_->options.attach_time);
    core_->metrics.leg_cancelled(core_->registry, leg->dispatch.worker, leg->dispatch.leg);
  }
}

void RequestRun::abort_engine(const LegRun& leg) const {
  std::string body = abort_body(connector(), leg.rid);
  if (body.empty()) return;
  const net::Url& url = core_->registry.url(leg.dispatch.worker);
  net::ClientRequest call;
  call.method = "POST";
  call.host = url.host;
  call.port = url.port;
  call.tls = url.tls;
  call.target = url.base + std::string(connector().abort.path);
  call.headers.add("Content-Type", "application/json");
  for (const auto& [name, value] : request_.headers) {
    if (carries_key(name) && core_->options.forward_authorization) call.headers.add(name, value);
  }
  if (call.headers.size() == 1) core_->registry.add_own_headers(leg.dispatch.worker, call.headers);
  call.body = std::move(body);
  call.replay_safe = true;
  core_->reactor.spawn(call_abort(core_, std::move(call)));
}

// Prefill holds KV that no decode leg has taken: one for a single token does, for nobody.
void RequestRun::release() {
  if (!pair() || !checked_.body || !harvest_) return;
  const Placement chosen =
      choose_decode(candidates(), placement_request(), policy_options(), placement_.prefill);
  if (!chosen.found()) return;  // its lease will run out
  const WorkerId worker = chosen.answer;
  placement_.answer_rank = chosen.answer_rank;
  Result<net::ClientRequest> request = leg_request(LegPart::kRelease, worker, 1);
  if (!request) return;
  auto leg = std::make_shared<LegRun>();
  leg->dispatch.worker = worker;
  leg->detached = true;
  leg->load = core_->ledger.take(worker, {1, 0, checked_.prompt_tokens + 1},
                                 static_cast<uint32_t>(chosen.answer_rank));
  const Duration limit = core_->options.attach_time;
  leg->call = core_->client.call(std::move(*request), {kConnectTime, limit, limit});
  core_->metrics.releases.add();
  running_.push_back(leg);
  core_->reactor.spawn(run_release(shared_from_this(), std::move(leg)));
}

net::asio::awaitable<void> RequestRun::run_release(std::shared_ptr<RequestRun> self,
                                                   std::shared_ptr<LegRun> leg) {
  const auto head = co_await leg->call->head();
  if (head) (void)co_await leg->call->read_all(kReplyBytes);
  leg->load.release();
  std::erase(self->running_, leg);
}

std::string RequestRun::tandem_envelope(LegPart part, uint32_t attempt) const {
  api::TandemEnvelope envelope;
  if (part != LegPart::kAlone) {
    envelope.leg =
        part == LegPart::kPrefill ? protocol::LegKind::kPrefill : protocol::LegKind::kDecode;
    envelope.handoff.handoff_id = handoff_id_;
    envelope.handoff.attempt = attempt;
    envelope.handoff.prefill_address = core_->registry.info(placement_.prefill).handoff_address;
  }
  envelope.context.request_id = checked_.request_id;
  envelope.context.salt = checked_.tandem->salt;
  envelope.context.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(time_left());
  envelope.context.trace = checked_.traceparent;
  envelope.report_tokens = true;
  // The ids are spliced as text: a long prompt as a tree of values would cost more than the rest of
  // the request.
  return json_insert_member(api::envelope_to_json(envelope).dump(), "prompt_token_ids",
                            checked_.tandem->ids_json)
      .value_or(std::string());
}

// What this leg has besides what the attempt has; nothing: no more.
std::optional<LegValues> RequestRun::own_values(LegPart part, WorkerId worker,
                                                uint32_t attempt) const {
  if (!checked_.tandem && core_->registry.ranks(worker) <= 1) return std::nullopt;
  LegValues values = values_;
  if (checked_.tandem) {
    values.tandem = tandem_envelope(part, attempt);
  } else {
    values.dp_rank = rank_of(part == LegPart::kPrefill ? Leg::kPrefill : Leg::kAnswer);
  }
  return values;
}

Result<net::ClientRequest> RequestRun::leg_request(LegPart part, WorkerId worker,
                                                   uint32_t attempt) const {
  const std::optional<LegValues> own = own_values(part, worker, attempt);
  const LegValues& values = own ? *own : values_;
  TANDEM_TRY(body, make_leg_body(connector(), part, checked_.body, checked_.facts, values,
                                 harvest_ ? &*harvest_ : nullptr));
  const net::Url& url = core_->registry.url(worker);
  net::ClientRequest made;
  made.method = "POST";
  made.host = url.host;
  made.port = url.port;
  made.tls = url.tls;
  made.target = url.base + request_.path;
  if (!checked_.tandem && !request_.query.empty()) made.target += "?" + request_.query;
  const bool keys = core_->options.forward_authorization;
  for (const auto& [name, value] : request_.headers) {
    if (forwarded(name, request_.headers) && (keys || !carries_key(name)))
      made.headers.add(name, value);
  }
  const std::string& id = values.request_id.empty() ? checked_.request_id : values.request_id;
  made.headers.add(std::string(kRequestId), id);
  if (!checked_.traceparent.empty()) made.headers.add("traceparent", checked_.traceparent);
  for (auto& [name, value] : leg_headers(connector(), part, values))
    made.headers.set(name, std::move(value));
  const bool clients_key =
      connector().opaque && std::ranges::any_of(made.headers, [](const net::Headers::Field& field) {
        return carries_key(field.first);
      });
  if (!clients_key) core_->registry.add_own_headers(worker, made.headers);
  made.body = std::move(body);
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

}  // namespace tandem::router
