#include "sim/router_simulation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "router/legs/load.h"
#include "router/policy/expected_output.h"
#include "router/policy/prefill_rate.h"
#include "router/policy/recent_tokens.h"
#include "sim/event_prefixes.h"

namespace tandem::sim {

namespace {

using router::Placement;
using router::WorkerId;
using router::WorkerRole;

class Simulation {
 public:
  Simulation(const Traffic& traffic, const RouterSetup& setup, const RouterPolicy& policy)
      : traffic_(traffic),
        setup_(setup),
        policy_(policy),
        options_(setup.policy),
        known_(static_cast<size_t>(setup.unified + setup.prefill + setup.decode)),
        admission_(setup.admission),
        random_(setup.seed) {
    options_.kind = policy.kind.value_or(router::PolicyKind::kAuto);
    options_.transfer_rate = setup.transfer_rate;
    for (int32_t i = 0; i < setup.unified; ++i) add_worker(WorkerRole::kUnified, i);
    for (int32_t i = 0; i < setup.prefill; ++i) add_worker(WorkerRole::kPrefill, i);
    for (int32_t i = 0; i < setup.decode; ++i) add_worker(WorkerRole::kDecode, i);
    const auto computing = static_cast<size_t>(setup.unified + setup.prefill);
    if (!policy.kind) aware_.emplace(setup.cache_aware, computing, traffic.block_tokens);
    held_.resize(workers_.size());
  }

  RouterOutcome run() {
    take(admission_.set_capacity(setup_.capacity, loop_.now()));
    if (traffic_.closed_loop) {
      for (int32_t i = 0; i < setup_.sessions_at_once; ++i) {
        // They begin one after another, so that they do not stay in step.
        loop_.after(std::chrono::milliseconds(500) * i, [this] { begin_next_conversation(); });
      }
    } else {
      schedule_arrival(0);
    }
    const TimePoint end = loop_.now() + setup_.time_limit;
    while (loop_.step(end)) {
    }
    return finish();
  }

 private:
  struct Node {
    Node(EventLoop& loop, const EngineSpec& spec, int32_t block_tokens)
        : engine(loop, spec, block_tokens) {}
    ServingWorker engine;
    router::WorkerSnapshot snapshot;
    router::RecentTokens recent;
    router::PrefillRate rate;
    bool events_pending = false;
    double token_seconds = 0;  // tokens in flight over time
    TimePoint load_since{};
  };

  struct Request {
    size_t conversation = 0;
    size_t turn = 0;
    uint64_t number = 0;
    TimePoint arrived;
    TimePoint placed;
    int32_t expected_output = 0;
    router::PromptKeys keys;
    router::PrefixHolders::Expectation expected = 0;
    Placement placement;
    ServingWorker::JobPointer job;
    ServingWorker::JobPointer decode_job;
    router::LoadShare prefill_load;
    router::LoadShare answer_load;
  };
  using RequestPointer = std::shared_ptr<Request>;

  void add_worker(WorkerRole role, int32_t index) {
    const auto id = static_cast<WorkerId>(workers_.size());
    EngineSpec spec = setup_.engine;
    spec.shared_device = spec.shared_device && role == WorkerRole::kUnified;
    auto node = std::make_unique<Node>(loop_, spec, traffic_.block_tokens);
    node->snapshot.id = id;
    node->snapshot.role = role;
    node->snapshot.group =
        role == WorkerRole::kUnified ? 0 : static_cast<uint32_t>(index % setup_.groups);
    node->snapshot.key =
        mix(router::stable_hash("http://worker-" + std::to_string(id)), setup_.seed);
    if (setup_.tells_capacity) node->snapshot.capacity_tokens = spec.kv_tokens;
    node->snapshot.decode_step_seconds = spec.step_seconds;
    node->engine.cache_changed = [this, id] { note_cache_events(id); };
    workers_.push_back(std::move(node));
  }

  // What a worker's cache did reaches the router a little later, in batches.
  void note_cache_events(WorkerId id) {
    if (std::exchange(workers_[id]->events_pending, true)) return;
    loop_.after(setup_.event_delay, [this, id] {
      workers_[id]->events_pending = false;
      known_.told(id, workers_[id]->engine.cache().take_changes(), loop_.now());
    });
  }

  // --- clients ---

  void schedule_arrival(size_t index) {
    if (index >= traffic_.conversations.size()) return;
    const TimePoint at =
        TimePoint{} + from_seconds(traffic_.conversations[index].requests.front().at);
    loop_.at(std::max(at, loop_.now()), [this, index] {
      schedule_arrival(index + 1);
      if (setup_.jitter == Duration::zero()) return arrive(index, 0);
      loop_.after(lateness(), [this, index] { arrive(index, 0); });
    });
  }

  Duration lateness() { return Duration(random_.pick(setup_.jitter.count())); }

  void begin_next_conversation() {
    if (next_conversation_ >= traffic_.conversations.size()) return;
    arrive(next_conversation_++, 0);
  }

  void answered(const Request& request) {
    if (!traffic_.closed_loop) return;
    const Conversation& conversation = traffic_.conversations[request.conversation];
    const size_t turn = request.turn + 1;
    if (turn >= conversation.requests.size()) return begin_next_conversation();
    const double think = conversation.requests[turn].at;
    loop_.after(from_seconds(think) + lateness(),
                [this, at = request.conversation, turn] { arrive(at, turn); });
  }

  void arrive(size_t index, size_t turn) {
    const Conversation& conversation = traffic_.conversations[index];
    const TracedRequest& traced = conversation.requests[turn];
    auto request = std::make_shared<Request>();
    request->conversation = index;
    request->turn = turn;
    request->number = ++numbers_;
    request->arrived = loop_.now();
    request->job = std::make_shared<ServingWorker::Job>();
    request->job->chain = chain_of(traffic_, conversation, traced);
    request->keys = known_.keys_of(request->job->chain);
    request->job->chain_after =
        traffic_.closed_loop ? chain_after(traffic_, conversation, turn) : request->job->chain;
    request->job->input = traced.input;
    request->job->output = traced.output;
    ++outcome_.requests;
    outcome_.input_tokens += traced.input;
    count_ideal(*request->job);
    request->expected_output = outputs_.expect(0, 1, 0);
    requests_.emplace(request->number, request);
    router::AdmissionRequest asked;
    asked.tenant = conversation.space;
    asked.tokens = traced.input + request->expected_output;
    take(admission_.offer(request->number, asked, loop_.now()));
    arm_admission();
  }

  void count_ideal(const ServingWorker::Job& job) {
    size_t held = 0;
    while (held < job.chain.size() && ideal_.contains(job.chain[held])) ++held;
    outcome_.ideal_tokens +=
        std::min<int64_t>(static_cast<int64_t>(held) * traffic_.block_tokens, job.input - 1);
    ideal_.insert(job.chain.begin(), job.chain.end());
  }

  // --- admission ---

  void take(const router::AdmissionEvents& events) {
    for (const router::AdmissionEvent& event : events) {
      const RequestPointer request = requests_.at(event.id);
      if (event.kind == router::AdmissionEvent::Kind::kStart) {
        outcome_.waits.push_back(to_seconds(loop_.now() - request->arrived));
        place(*request);
      } else {
        ++outcome_.shed;
        requests_.erase(event.id);
        answered(*request);
      }
    }
  }

  void arm_admission() {
    const TimePoint at = admission_.wakes_at();
    if (at == TimePoint::max() || at == admission_armed_) return;
    admission_armed_ = at;
    loop_.at(at, [this] {
      admission_armed_ = {};
      take(admission_.tick(loop_.now()));
      arm_admission();
    });
  }

  // --- placing ---

  void refresh_snapshots(const Request& request) {
    known_.match(request.keys, held_, loop_.now());
    snapshots_.clear();
    for (const auto& node : workers_) {
      router::WorkerSnapshot& snapshot = node->snapshot;
      const router::Load& load = ledger_.of(snapshot.id);
      snapshot.queued_tokens = load.queued_tokens;
      snapshot.running = load.running;
      snapshot.held_tokens = load.held_tokens;
      snapshot.recent_tokens = node->recent.of_minute(loop_.now());
      snapshot.reusable_tokens = node->recent.of_ten_minutes(loop_.now());
      snapshot.prefix_blocks = held_[snapshot.id];
      snapshots_.push_back(snapshot);
    }
  }

  router::PlacementRequest placement_request(const Request& request) const {
    const Conversation& conversation = traffic_.conversations[request.conversation];
    router::PlacementRequest made;
    made.prompt_tokens = request.job->input;
    made.expected_output = request.expected_output;
    made.block_tokens = traffic_.block_tokens;
    // As in request_run.cc: the client's key, else the hash of the first blocks.
    made.affinity = conversation.has_key          ? mix(conversation.space, 1)
                    : !request.job->chain.empty() ? request.job->chain.front()
                                                  : mix(request.number, 2);
    made.turn = turn_;
    return made;
  }

  Placement choose(const Request& request) {
    refresh_snapshots(request);
    router::PlacementRequest asked = placement_request(request);
    ++turn_;
    if (!aware_) return choose_placement(snapshots_, asked, options_);
    const auto computing = static_cast<size_t>(setup_.unified + setup_.prefill);
    std::vector<int32_t> running;
    running.reserve(computing);
    for (size_t i = 0; i < computing; ++i) running.push_back(snapshots_[i].running);
    const auto chosen = static_cast<WorkerId>(
        aware_->choose(request.job->chain, request.job->input, running, loop_.now()));
    const int64_t cached = int64_t{snapshots_[chosen].prefix_blocks} * traffic_.block_tokens;
    Placement placement;
    placement.expected_cached =
        static_cast<int32_t>(std::min<int64_t>(cached, request.job->input - 1));
    if (snapshots_[chosen].role == WorkerRole::kUnified) {
      placement.answer = chosen;
      return placement;
    }
    placement.prefill = chosen;
    router::PolicyOptions options = options_;
    options.kind = router::PolicyKind::kPowerOfTwo;  // as its users are advised for decode
    placement.answer = choose_decode(snapshots_, asked, options, chosen).answer;
    return placement;
  }

  router::LoadShare load(WorkerId worker, const router::Load& load) {
    note_load(worker);
    return ledger_.take(worker, load);
  }
  void drop(WorkerId worker, router::LoadShare& share) {
    note_load(worker);
    share.release();
  }
  void note_load(WorkerId worker) {
    Node& node = *workers_[worker];
    node.token_seconds += static_cast<double>(ledger_.of(worker).held_tokens) *
                          to_seconds(loop_.now() - node.load_since);
    node.load_since = loop_.now();
  }

  void place(Request& request) {
    request.placed = loop_.now();
    request.placement = choose(request);
    const Placement& placement = request.placement;
    const bool pair = placement.prefill != router::kNoWorker;
    const WorkerId computing = pair ? placement.prefill : placement.answer;
    const int64_t prompt = request.job->input;
    const int64_t queued = prompt - placement.expected_cached;
    if (pair) request.prefill_load = load(computing, {1, queued, prompt});
    request.answer_load =
        load(placement.answer, {1, pair ? 0 : queued, prompt + request.expected_output});
    touch(request);
    request.expected = known_.expect(computing, request.keys, held_[computing], loop_.now());
    request.job->computed = [this, &request](int32_t cached) { computed(request, cached); };
    if (pair) {
      request.decode_job = std::make_shared<ServingWorker::Job>(*request.job);
      request.decode_job->computed = nullptr;
    }
    ServingWorker::Job& answering = pair ? *request.decode_job : *request.job;
    answering.first_token = [this, &request] { first_token(request); };
    answering.finished = [this, &request] { finished(request); };
    workers_[computing]->engine.prefill(request.job);
  }

  void touch(const Request& request) {
    const Placement& placement = request.placement;
    for (const WorkerId worker : {placement.prefill, placement.answer}) {
      if (worker != router::kNoWorker)
        workers_[worker]->recent.touch(request.job->chain, traffic_.block_tokens, loop_.now());
    }
  }

  void computed(Request& request, int32_t cached) {
    const Placement& placement = request.placement;
    const bool pair = placement.prefill != router::kNoWorker;
    const WorkerId computing = pair ? placement.prefill : placement.answer;
    outcome_.cached_tokens += cached;
    known_.settle(request.expected, router::kEventTime, loop_.now());
    measure(request, computing, request.job->input - cached);
    if (!pair) return workers_[computing]->engine.decode(request.job);
    drop(computing, request.prefill_load);
    // Layers were pushed as they became final: what the link is slower than the computation is
    // left, and a handshake.
    const WorkerId answer = placement.answer;
    const auto held = workers_[answer]->engine.cache().match(request.job->chain);
    const double missing =
        std::max<double>(request.job->input - static_cast<double>(held) * traffic_.block_tokens, 0);
    const double link = missing / setup_.transfer_rate;
    const double left = std::max(0.0, link - to_seconds(loop_.now() - request.placed));
    loop_.after(setup_.transfer_latency + from_seconds(left), [this, &request, computing, answer] {
      workers_[computing]->engine.release(request.job);
      workers_[answer]->engine.receive(request.decode_job);
    });
  }

  void measure(const Request& request, WorkerId computing, int64_t tokens) {
    Node& node = *workers_[computing];
    node.rate.computed(request.placed, loop_.now(), tokens);
    node.snapshot.prefill_rate = node.rate.tokens_per_second();
  }

  void first_token(Request& request) {
    outcome_.first_token.push_back(to_seconds(loop_.now() - request.arrived));
    request.answer_load.release_queued();
    touch(request);
  }

  void finished(Request& request) {
    drop(request.placement.answer, request.answer_load);
    outputs_.observe(0, 1, request.job->output);
    ideal_.insert(request.job->chain_after.begin(), request.job->chain_after.end());
    ++finished_;
    last_finish_ = loop_.now();
    answered(request);
    const uint64_t number = request.number;
    requests_.erase(number);
    take(admission_.release(number, loop_.now()));
    arm_admission();
  }

  // --- results ---

  RouterOutcome finish() {
    outcome_.policy = policy_.name;
    outcome_.seconds = to_seconds(last_finish_.time_since_epoch());
    outcome_.unfinished = outcome_.requests - outcome_.shed - finished_;
    std::sort(outcome_.first_token.begin(), outcome_.first_token.end());
    std::sort(outcome_.waits.begin(), outcome_.waits.end());
    std::vector<double> loads;
    std::vector<double> work;
    double busy = 0;
    for (const auto& node : workers_) {
      note_load(node->snapshot.id);
      outcome_.steps.add(node->engine.steps());
      if (node->snapshot.role != WorkerRole::kPrefill) loads.push_back(node->token_seconds);
      if (node->snapshot.role == WorkerRole::kDecode) continue;
      work.push_back(static_cast<double>(node->engine.computed_tokens()));
      busy += node->engine.busy_seconds();
    }
    outcome_.load_ratio = largest_over_mean(loads);
    outcome_.work_ratio = largest_over_mean(work);
    outcome_.utilization =
        busy / std::max(outcome_.seconds * static_cast<double>(work.size()), 1e-9);
    return std::move(outcome_);
  }

  static double largest_over_mean(const std::vector<double>& values) {
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (sum <= 0) return 1;
    return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) /
           sum;
  }

  const Traffic& traffic_;
  const RouterSetup& setup_;
  RouterPolicy policy_;
  router::PolicyOptions options_;
  EventLoop loop_;
  router::LoadLedger ledger_;
  std::vector<std::unique_ptr<Node>> workers_;
  EventPrefixes known_;
  router::Admission admission_;
  router::ExpectedOutput outputs_;
  std::optional<CacheAware> aware_;
  Random random_;
  std::unordered_map<uint64_t, RequestPointer> requests_;  // waiting and placed, by number
  std::unordered_set<uint64_t> ideal_;
  std::vector<router::WorkerSnapshot> snapshots_;
  std::vector<int32_t> held_;
  TimePoint admission_armed_{};
  size_t next_conversation_ = 0;
  uint64_t numbers_ = 0;
  uint64_t turn_ = 0;
  int64_t finished_ = 0;
  TimePoint last_finish_{};
  RouterOutcome outcome_;
};

}  // namespace

std::vector<RouterPolicy> all_router_policies() {
  std::vector<RouterPolicy> all;
  for (const std::string& name : router::policy_names())
    all.push_back({name, *router::parse_policy(name)});
  all.push_back({"cache_aware", std::nullopt});
  return all;
}

Result<RouterPolicy> parse_router_policy(std::string_view name) {
  if (name == "cache_aware") return RouterPolicy{"cache_aware", std::nullopt};
  TANDEM_TRY(kind, router::parse_policy(name));
  return RouterPolicy{std::string(name), kind};
}

RouterOutcome joined(const std::vector<RouterOutcome>& outcomes) {
  RouterOutcome all;
  const double share = 1 / static_cast<double>(std::max<size_t>(outcomes.size(), 1));
  for (const RouterOutcome& one : outcomes) {
    all.policy = one.policy;
    all.requests += one.requests;
    all.shed += one.shed;
    all.unfinished += one.unfinished;
    all.seconds += one.seconds * share;
    all.first_token.insert(all.first_token.end(), one.first_token.begin(), one.first_token.end());
    all.waits.insert(all.waits.end(), one.waits.begin(), one.waits.end());
    all.steps.add(one.steps);
    all.input_tokens += one.input_tokens;
    all.cached_tokens += one.cached_tokens;
    all.ideal_tokens += one.ideal_tokens;
    all.load_ratio += one.load_ratio * share;
    all.work_ratio += one.work_ratio * share;
    all.utilization += one.utilization * share;
  }
  std::sort(all.first_token.begin(), all.first_token.end());
  std::sort(all.waits.begin(), all.waits.end());
  return all;
}

double RouterOutcome::mean_first_token() const {
  if (first_token.empty()) return 0;
  return std::accumulate(first_token.begin(), first_token.end(), 0.0) /
         static_cast<double>(first_token.size());
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

Result<RouterOutcome> simulate_router(const Traffic& traffic, const RouterSetup& setup,
                                      const RouterPolicy& policy) {
  const int64_t workers = int64_t{setup.unified} + setup.prefill + setup.decode;
  const bool pairs = setup.prefill >= setup.groups && setup.decode >= setup.groups;
  if (workers > kMostSimulatedWorkers || setup.groups < 1 || (setup.unified < 1 && !pairs)) {
    return make_error(400, "invalid_option",
                      "The simulated fleet needs at most 256 workers: unified ones, or prefill and "
                      "decode ones in every group.");
  }
  return Simulation(traffic, setup, policy).run();
}

}  // namespace tandem::sim
