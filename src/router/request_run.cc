#include "router/request_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "numerics/mix.h"
#include "observe/log.h"
#include "router/request_id.h"

namespace tandem::router {

namespace {

constexpr size_t kAffinityBlocks = 4;
// Other engines only: what an error answer of theirs means must be clear before 50 ms have passed.
constexpr Duration kVerdictTime = std::chrono::milliseconds(30);

TimePoint now() { return std::chrono::steady_clock::now(); }

LegsOptions legs_options(RouterCore& core, const Connector& connector) {
  LegsOptions made = core.options.legs;
  made.budget = &core.retry_budget;
  if (!connector.opaque) return made;
  made.verdict_time = std::min(made.verdict_time, kVerdictTime);
  made.redials = false;
  // Pushed KV needs a decode leg that is there already.
  made.keeps = connector.lease && connector.identity != IdentitySource::kPrefillReply;
  made.releases = made.keeps && core.options.release_kv;
  made.cut_in_flight = connector.cut_in_flight;
  return made;
}

uint64_t affinity_hash(const CheckedRequest& checked) {
  if (!checked.affinity_key.empty()) return stable_hash(checked.affinity_key);
  const std::span<const BlockKey> blocks = checked.prefix.chain();
  if (!checked.prefix.of_bytes() && !blocks.empty())
    return stable_hash(std::to_string(blocks[std::min(blocks.size(), kAffinityBlocks) - 1]));
  if (checked.tandem) return stable_hash(checked.tandem->ids_json);
  if (checked.facts.opening != 0) return mix64(checked.facts.opening);
  return stable_hash(*checked.body);
}

}  // namespace

RequestRun::RequestRun(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                       net::HttpResponder& responder, CheckedRequest checked)
    : core_(std::move(core)),
      request_(request),
      responder_(responder),
      model_(checked.model),
      checked_(std::move(checked)),
      affinity_(affinity_hash(checked_)),
      started_(now()),
      legs_(legs_options(*core_, *model_->connector)),
      wake_(core_->reactor),
      prefill_settled_(core_->reactor),
      tick_(core_->reactor, [this] { apply(legs_.tick(now())); }),
      deadline_(core_->reactor, [this] { apply(legs_.deadline_passed()); }),
      heartbeat_(core_->reactor, [this] { core_->reactor.spawn(beat(shared_from_this())); }),
      written_(core_->reactor) {
  core_->runs.insert(this);
  core_->retry_budget.request(started_);
}

RequestRun::~RequestRun() {
  core_->feeds.settle(expected_, Duration::zero());
  core_->runs.erase(this);
}

net::asio::awaitable<void> RequestRun::serve() {
  const auto self = shared_from_this();
  serving_ = true;
  deadline_.arm(core_->options.request_timeout);
  responder_.on_disconnect([this] { apply(legs_.client_gone()); });
  if (checked_.stream) beat_later();
  apply(legs_.start());
  // The legs' coroutines write to the responder: it is ours again when the last has ended or was
  // let go.
  const auto busy = [this] {
    return std::ranges::any_of(running_, [](const auto& leg) { return !leg->detached; });
  };
  while (!last_ || busy()) co_await wake_.wait();
  deadline_.disarm();
  tick_.disarm();
  heartbeat_.disarm();
  co_await writer_free();
  co_await answer_at_last();
  serving_ = false;
  release_request();
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
    case Decision::Kind::kDetach:
      return detach(decision.serial);
    case Decision::Kind::kRelease:
      return release();
    case Decision::Kind::kCharge:
      return core_->registry.charge(decision.worker);
    default:
      answer_load_.release();
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
      core_->outputs.expect(checked_.tenant, stable_hash(model_->id), checked_.max_tokens);
  made.block_tokens = checked_.prefix.block_tokens();
  made.affinity = affinity_;
  made.turn = core_->next_turn;
  made.excluded = legs_.excluded();
  return made;
}

PolicyOptions RequestRun::policy_options() const {
  PolicyOptions made = core_->options.policy;
  // SGLang's decode workers take no request without a room: they cannot compute a prompt.
  if (connector().opaque && connector().batch == BatchRule::kArrays) made.local_prefill_tokens = 0;
  return made;
}

const std::vector<WorkerSnapshot>& RequestRun::candidates() {
  std::vector<WorkerSnapshot>& all = core_->snapshots;
  held_ = core_->holders.match(checked_.prefix.kinds, now());
  core_->registry.snapshots(*model_, held_, checked_.prefix.block_tokens(), all);
  // An engine's prefill worker answers nobody but its pair.
  if (checked_.one_worker && model_->opaque())
    std::erase_if(all,
                  [](const WorkerSnapshot& worker) { return worker.role == WorkerRole::kPrefill; });
  return all;
}

void RequestRun::place_all() {
  if (!placed_) return place_now();
  ++summary_.retries;
  core_->metrics.prefill_retries.add();
  // The failure may mean that prefill is another process than the one we know.
  const bool stale = connector().identity != IdentitySource::kNone && pair();
  if (!stale) return place_now();
  core_->reactor.spawn(place_after_relearning(shared_from_this(), placement_.prefill));
}

net::asio::awaitable<void> RequestRun::place_after_relearning(std::shared_ptr<RequestRun> self,
                                                              WorkerId prefill) {
  WorkerRegistry& registry = self->core_->registry;
  if (registry.up(prefill)) co_await registry.relearn(prefill, self->placement_.prefill_rank);
  // The next one may have been restarted unnoticed, too.
  const Placement next =
      choose_placement(self->candidates(), self->placement_request(), self->policy_options());
  if (next.prefill != kNoWorker && next.prefill != prefill && registry.up(next.prefill))
    co_await registry.relearn(next.prefill, next.prefill_rank);
  self->place_now();
}

void RequestRun::place_now() {
  if (legs_.over()) return;
  placement_ = choose_placement(candidates(), placement_request(), policy_options());
  if (!placement_.found() && placed_ && connector().identity != IdentitySource::kNone) {
    // Who failed may have felt an old engine id, which was asked for again since.
    PlacementRequest anyone = placement_request();
    anyone.excluded.clear();
    placement_ = choose_placement(candidates(), anyone, policy_options());
  }
  if (!placement_.found()) return apply(legs_.not_placed());
  placed_ = true;
  ++core_->next_turn;
  touch_blocks();
  if (placement_.local_prefill) core_->metrics.local_prefills.add();
  expect_blocks();
  summary_.expected_cached = placement_.expected_cached;
  harvest_.reset();
  prompt_truth_.reset();
  mint_values();
  prefill_pending_ = pair();
  const bool first = connector().order == LegOrder::kPrefillFirst;
  answer_load_.release();
  if (pair() && first) {  // its worker should not be given to others meanwhile
    Decision answer;
    answer.worker = placement_.answer;
    answer_load_ = core_->ledger.take(placement_.answer, load_of(answer),
                                      static_cast<uint32_t>(placement_.answer_rank));
  }
  apply(legs_.placed(placement_, first ? Order::kPrefillFirst : Order::kTogether));
}

void RequestRun::place_answer() {
  answer_load_.release();
  const Placement chosen =
      choose_decode(candidates(), placement_request(), policy_options(), placement_.prefill);
  if (!chosen.found()) return apply(legs_.not_placed());
  core_->metrics.answer_retries.add();
  ++summary_.retries;
  placement_.answer = chosen.answer;
  placement_.answer_rank = chosen.answer_rank;
  apply(legs_.placed_answer(chosen.answer));
}

// What the legs of one attempt meet on; nothing of an earlier one is used again.
void RequestRun::mint_values() {
  if (checked_.tandem) {
    handoff_id_ = mint_id();
    values_ = {};
    return;
  }
  const WorkerRegistry& registry = core_->registry;
  const auto random = [this] { return core_->random(); };
  const auto wall = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  if (!pair()) {
    values_ = mint(connector(), checked_.facts, random, core_->global_ids, wall);
    values_.rooms.clear();
    values_.request_id = checked_.request_id;
  } else {
    const EngineInfo& engine = registry.engine(placement_.prefill);
    const int32_t ranks = registry.ranks(placement_.prefill);
    const int32_t rank = placement_.prefill_rank;
    const auto place = static_cast<size_t>(rank);
    values_ = mint(connector(), checked_.facts, random, core_->global_ids, wall, ranks, rank);
    // Engines name what they hold by it, so it must be ours alone, whatever clients send.
    values_.request_id = checked_.request_id + "-" + short_id(core_->random());
    values_.bootstrap_host = registry.url(placement_.prefill).host;
    if (engine.bootstrap_port != 0) values_.bootstrap_port = engine.bootstrap_port;
    values_.context_endpoint = engine.context_endpoint;
    values_.context_dp_rank = engine.context_dp_rank;
    if (place < engine.identities.size()) values_.identity = engine.identities[place];
    if (place < engine.engine_ids.size()) values_.identity.engine_id = engine.engine_ids[place];
    if (ranks > 1) values_.prefill_dp_rank = rank;
    if (connector().notify_port != 0) {
      values_.prefill_side = side_of(placement_.prefill, rank);
      values_.decode_side = side_of(placement_.answer, placement_.answer_rank);
      if ((connector().mint & kMintPairId) != 0)
        values_.request_id =
            pair_request_id(*values_.prefill_side, *values_.decode_side, values_.request_id);
    }
  }
  // Streams are counted though their clients did not ask; anybody's server may not know how.
  values_.ask_usage = connector().order != LegOrder::kAlone;
}

SideAddress RequestRun::side_of(WorkerId worker, int32_t rank) const {
  const WorkerRegistry& registry = core_->registry;
  const WorkerAddress& address = registry.address(worker);
  SideAddress side;
  side.host = registry.url(worker).host;
  side.handshake_port = registry.engine(worker).bootstrap_port;
  side.notify_port =
      address.notify_port != 0 ? address.notify_port : registry.connector(worker).notify_port;
  side.tp_size = address.tp_size;
  side.dp_size = registry.ranks(worker);
  side.dp_rank = rank;
  return side;
}

Load RequestRun::load_of(const Decision& decision) const {
  const int64_t prompt = checked_.prompt_tokens;
  const bool computes = decision.leg == Leg::kPrefill || !pair();
  const int64_t output = decision.leg == Leg::kAnswer ? placement_request().expected_output : 0;
  const int64_t queued = std::max<int64_t>(prompt - placement_.expected_cached, 0);
  return {1, computes ? queued : 0, prompt + output};
}

Duration RequestRun::time_left() const {
  return std::max<Duration>(started_ + core_->options.request_timeout - now(),
                            std::chrono::milliseconds(1));
}

void RequestRun::leg_failed(LegRun& leg, LegFailure failure, const Error& error) {
  if (leg.over()) return;
  if (leg.dispatch.leg == Leg::kPrefill && failure != LegFailure::kRefused) {
    prefill_pending_ = false;
    prefill_settled_.notify();
  }
  core_->metrics.leg_ended(core_->registry, leg.dispatch.worker, leg.dispatch.leg, failure);
  // It told an old address, or of somebody who is gone.
  if (failure == LegFailure::kLostPeer && pair()) core_->registry.look_again(placement_.prefill);
  leg.load.release();  // before another placement looks at the loads
  apply(legs_.failed(leg.dispatch.serial, failure, error, now()));
}

void RequestRun::leg_died(LegRun& leg, const Error& error) {
  if (leg.over()) return;
  const WorkerId worker = leg.dispatch.worker;
  observe::log_warning("request {}: {} leg on {} died: {}", checked_.request_id,
                       leg.dispatch.leg == Leg::kPrefill ? "prefill" : "answer",
                       core_->registry.url_text(worker), error.code);
  const bool unreached = error.code.starts_with("connect_") || error.code == "tls_failed";
  leg_failed(leg, unreached ? LegFailure::kUnreached : LegFailure::kDied, error);
  core_->registry.leg_died(worker, error.code);
}

// Who has the prompt when this request is over. Decode's own prefix counts only where decode may
// compute a prompt itself.
std::vector<RequestRun::Holder> RequestRun::who_will_hold() const {
  std::vector<Holder> all{{placement_.answer, placement_.answer_rank}};
  if (!pair()) return all;
  if (model_->opaque() && policy_options().local_prefill_tokens == 0) all.clear();
  all.push_back({placement_.prefill, placement_.prefill_rank});
  return all;
}

// A burst of requests with one beginning should not be spread because nobody has it yet: what was
// placed counts as held at once by who computes it. Not by its decode worker: a prompt that came
// there without its pair would be computed anew. Where no event will tell of it, that is all there
// will be to know: a leg that fails then costs a wrong guess later.
void RequestRun::expect_blocks() {
  core_->feeds.settle(expected_, Duration::zero());
  const Holder holder = pair() ? Holder{placement_.prefill, placement_.prefill_rank}
                               : Holder{placement_.answer, placement_.answer_rank};
  believed_ = holder;
  for (const PromptKeys& kind : checked_.prefix.kinds) {
    if (core_->feeds.told_of(holder.worker, kind)) {
      core_->feeds.sent(holder.worker, holder.rank, kind, held_blocks(holder, kind), expected_);
    } else {
      core_->feeds.holds(holder.worker, holder.rank, kind, held_blocks(holder, kind));
    }
  }
}

void RequestRun::touch_blocks() {
  const std::span<const BlockKey> blocks = checked_.prefix.chain();
  const int32_t block_tokens = checked_.prefix.block_tokens();
  if (checked_.prefix.kinds.empty()) return;  // released
  // What the chain does not tell counts as one block more.
  const auto rest = static_cast<int32_t>(std::min<int64_t>(
      checked_.prefix.beyond_chain(checked_.prompt_tokens), std::numeric_limits<int32_t>::max()));
  const uint64_t opening = checked_.facts.opening != 0 ? checked_.facts.opening : affinity_;
  const uint64_t end = mix64(blocks.empty() ? opening : blocks.back());
  const auto touch = [&](WorkerId worker, int32_t rank) {
    core_->registry.touched(worker, rank, blocks, block_tokens);
    if (rest > 0) core_->registry.touched(worker, rank, {&end, 1}, rest);
  };
  if (pair()) touch(placement_.prefill, placement_.prefill_rank);
  touch(placement_.answer, placement_.answer_rank);
}

// When the last placement was made.
size_t RequestRun::held_blocks(Holder holder, const PromptKeys& kind) const {
  for (const HeldPrefix& one : held_) {
    if (one.worker == holder.worker && one.rank == holder.rank)
      return static_cast<size_t>(one.tokens / kind.block_tokens);
  }
  return 0;
}

// At the first byte.
void RequestRun::learn_from_request() {
  touch_blocks();
  core_->feeds.settle(expected_, kEventTime);
  for (const Holder holder : who_will_hold()) {
    if (holder.worker == believed_.worker && holder.rank == believed_.rank) continue;
    for (const PromptKeys& kind : checked_.prefix.kinds)
      core_->feeds.holds(holder.worker, holder.rank, kind, held_blocks(holder, kind));
  }
}

// What is needed only while a leg may still be sent.
void RequestRun::release_request() {
  checked_.body.reset();
  checked_.facts = {};
  harvest_.reset();
  request_.body = std::string();
  if (!checked_.tandem) checked_.prefix = {};
  held_ = {};
}

}  // namespace tandem::router
