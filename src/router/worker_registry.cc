#include "router/worker_registry.h"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include "numerics/mix.h"
#include "observe/log.h"
#include "router/policy/policy.h"

namespace tandem::router {

namespace {

double smooth(double old, double fresh) { return old + 0.2 * (fresh - old); }

TimePoint now() { return std::chrono::steady_clock::now(); }

template <typename Value>
Value& of_rank(std::vector<Value>& all, int32_t rank) {
  const auto place = static_cast<size_t>(rank);
  if (place >= all.size()) all.resize(place + 1);
  return all[place];
}

}  // namespace

const char* role_name(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
    case WorkerRole::kUnified:
      return "unified";
  }
  return "unified";
}

Status set_worker_field(WorkerAddress& address, std::string_view field, const std::string& value) {
  const auto bad = [&](const std::string& why) {
    return make_error(400, "bad_worker", "'" + std::string(field) + "' " + why);
  };
  const auto number = [&](auto& target, int64_t least, int64_t most) -> Status {
    int64_t read = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), read);
    if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size() || read < least ||
        read > most)
      return bad("is not a number from " + std::to_string(least) + " to " + std::to_string(most));
    target = static_cast<std::remove_reference_t<decltype(target)>>(read);
    return {};
  };
  if (field == "role") {
    for (const WorkerRole role :
         {WorkerRole::kPrefill, WorkerRole::kDecode, WorkerRole::kUnified}) {
      if (value != role_name(role)) continue;
      address.role = role;
      return {};
    }
    return bad("is not prefill, decode or unified");
  }
  if (field == "bootstrap_port") return number(address.bootstrap_port, 1, 65535);
  if (field == "notify_port") return number(address.notify_port, 1, 65535);
  if (field == "dp_size") return number(address.dp_size, 1, 1024);
  if (field == "tp_size") return number(address.tp_size, 1, 1024);
  for (const auto& [name, target] :
       {std::pair{"url", &address.url}, std::pair{"connector", &address.connector},
        std::pair{"group", &address.group}, std::pair{"model", &address.model},
        std::pair{"kv_events", &address.kv_events}}) {
    if (field != name) continue;
    *target = value;
    return {};
  }
  return bad("is nothing that a worker has");
}

const char* state_name(WorkerRegistry::State state) {
  switch (state) {
    case WorkerRegistry::State::kUnknown:
      return "unknown";
    case WorkerRegistry::State::kUp:
      return "up";
    case WorkerRegistry::State::kNotReady:
      return "not_ready";
    case WorkerRegistry::State::kDown:
      return "down";
    case WorkerRegistry::State::kRemoved:
      return "removed";
  }
  return "unknown";
}

WorkerRegistry::WorkerRegistry(net::Reactor& reactor, net::HttpClient& client,
                               const LoadLedger& ledger, RegistryOptions options, Events events)
    : reactor_(reactor),
      client_(client),
      ledger_(ledger),
      options_(std::move(options)),
      events_(std::move(events)) {}

uint32_t WorkerRegistry::group_number(const WorkerAddress& address) {
  const auto name = std::make_pair(address.connector, address.group);
  const auto found = std::ranges::find(groups_, name);
  if (found != groups_.end()) return static_cast<uint32_t>(found - groups_.begin());
  groups_.push_back(name);
  return static_cast<uint32_t>(groups_.size() - 1);
}

Result<WorkerId> WorkerRegistry::add(const WorkerAddress& address) {
  TANDEM_TRY(url, net::parse_url(address.url));
  TANDEM_TRY(connector, find_connector(address.connector));
  if (connector->order == LegOrder::kAlone && address.role != WorkerRole::kUnified) {
    return make_error(400, "bad_worker",
                      "a worker of connector '" + address.connector + "' has no pair: give " +
                          address.url + " as a unified worker");
  }
  for (const auto& other : workers_) {
    if (other->state != State::kRemoved && other->address.url == address.url)
      return make_error(400, "bad_worker", "the worker " + address.url + " is there already");
  }
  auto worker = std::make_unique<Worker>(reactor_);
  worker->address = address;
  worker->url = url;
  worker->connector = connector;
  worker->group = group_number(address);
  worker->key = stable_hash(address.url);
  worker->engine.dp_size = std::max(1, address.dp_size);
  worker->engine.bootstrap_port =
      address.bootstrap_port != 0 ? address.bootstrap_port : connector->bootstrap_port;
  worker->engine.kv_events = address.kv_events;
  worker->info.role = address.role;
  if (connector->opaque) ++engines_;
  workers_.push_back(std::move(worker));
  const auto id = static_cast<WorkerId>(workers_.size() - 1);
  if (keep_alive_) reactor_.spawn(poll(id, keep_alive_));
  return id;
}

void WorkerRegistry::move(WorkerId id, const std::string& url_text, const net::Url& url) {
  Worker& worker = *workers_[id];
  client_.drop_idle(worker.url.host, worker.url.port);
  set_state(id, State::kDown, "it moved");
  worker.address.url = url_text;
  worker.url = url;
  worker.key = stable_hash(url_text);
  worker.recent_tokens = {};
  worker.poke.notify();
}

void WorkerRegistry::drain(WorkerId id, bool on) {
  if (std::exchange(workers_[id]->draining, on) != on)
    observe::log_info("worker {} {}", workers_[id]->address.url,
                      on ? "is drained" : "takes requests again");
}

void WorkerRegistry::remove(WorkerId id) {
  Worker& worker = *workers_[id];
  if (worker.state == State::kRemoved) return;
  worker.draining = true;
  worker.state = State::kRemoved;
  worker.engine.models.clear();
  worker.info.model_id.clear();
  worker.recent_tokens = {};  // megabytes
  if (worker.connector->opaque) --engines_;
  ++removed_;
  if (events_.new_epoch) events_.new_epoch(id);  // nobody is to be sent there for its cache
  forget_unserved_models();
  observe::log_info("worker {} was removed", worker.address.url);
  worker.poke.notify();
}

void WorkerRegistry::start(std::shared_ptr<void> keep_alive) {
  keep_alive_ = std::move(keep_alive);
  for (WorkerId id = 0; id < workers_.size(); ++id) reactor_.spawn(poll(id, keep_alive_));
}

void WorkerRegistry::stop() {
  stopping_ = true;
  keep_alive_.reset();
  for (const auto& worker : workers_) worker->poke.notify();
}

net::asio::awaitable<void> WorkerRegistry::poll(WorkerId id,
                                                [[maybe_unused]] std::shared_ptr<void> keep_alive) {
  Worker& worker = *workers_[id];
  const bool engine = worker.connector->opaque;
  const int limit = engine ? options_.health_failures : options_.poll_failures;
  while (!stopping_ && worker.state != State::kRemoved) {
    const bool answered = engine ? co_await poll_engine(id) : co_await poll_tandem(id);
    if (stopping_ || worker.state == State::kRemoved) break;
    // A first silence is followed up at once: two limits, not two intervals more, until a stopped
    // worker is noticed.
    if (!answered && worker.failures > 0 && worker.failures < limit) continue;
    co_await worker.poke.wait_for(engine ? options_.health_interval : options_.poll_interval);
  }
}

net::asio::awaitable<Result<net::WholeResponse>> WorkerRegistry::get(WorkerId id,
                                                                     const std::string& path,
                                                                     Duration limit,
                                                                     size_t max_bytes) {
  const Worker& worker = *workers_[id];
  net::ClientRequest request;
  request.host = worker.url.host;
  request.port = worker.url.port;
  request.tls = worker.url.tls;
  request.target = worker.url.base + path;
  add_own_headers(id, request.headers);
  return net::fetch(client_, std::move(request), {limit, limit, limit}, max_bytes);
}

void WorkerRegistry::add_own_headers(WorkerId id, net::Headers& headers) const {
  if (!connector(id).opaque) {
    if (!options_.secret.empty()) headers.add("x-tandem-auth", options_.secret);
  } else if (!options_.worker_api_key.empty()) {
    headers.add("Authorization", "Bearer " + options_.worker_api_key);
  }
}

// Another process: whatever ran there is gone, and so is its cache.
void WorkerRegistry::restarted(WorkerId id) {
  Worker& worker = *workers_[id];
  client_.drop_idle(worker.url.host, worker.url.port);
  if (worker.state == State::kUp) set_state(id, State::kDown, "it was restarted");
  worker.charged = 0;
  worker.open_until = {};
  worker.others_requests = 0;
  worker.away = false;
  worker.engine.identities.clear();
  worker.engine.engine_ids.clear();
  worker.load_path = 0;
  worker.recent_tokens = {};
  if (events_.new_epoch) events_.new_epoch(id);
}

bool WorkerRegistry::serves(WorkerId id, const ServedModel& model) const {
  const Worker& worker = *workers_[id];
  if (model.connector != worker.connector) return false;
  if (model.opaque()) {
    return std::ranges::find(worker.engine.models, model.id, &EngineModel::id) !=
           worker.engine.models.end();
  }
  const WorkerInfo& info = worker.info;
  return info.model_id == model.id && info.lineage == model.lineage &&
         info.block_tokens == model.block_tokens && info.adapters == model.adapters;
}

// A model whose workers are down is still known; one that they stopped serving is not.
void WorkerRegistry::forget_unserved_models() {
  const auto unserved = [this](const ModelList::Pointer& model) {
    for (WorkerId id = 0; id < workers_.size(); ++id) {
      if (serves(id, *model)) return false;
    }
    return true;
  };
  if (std::none_of(models_->all().begin(), models_->all().end(), unserved)) return;
  std::vector<ModelList::Pointer> all = models_->all();
  std::erase_if(all, unserved);
  models_ = std::make_shared<const ModelList>(std::move(all));
}

bool WorkerRegistry::in_use(const ServedModel& model, WorkerId except) const {
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (id != except && up(id) && serves(id, model)) return true;
  }
  return false;
}

void WorkerRegistry::set_state(WorkerId id, State state, const std::string& why) {
  Worker& worker = *workers_[id];
  if (worker.state == state || worker.state == State::kRemoved) return;
  const State before = std::exchange(worker.state, state);
  const char* const role = role_name(worker.address.role);
  worker.silent = false;
  if (state == State::kUp) {
    worker.was_up = true;
    observe::log_info("{} worker {} is up", role, worker.address.url);
    client_.warm(worker.url, options_.warm_connections);
  } else if (before != State::kUnknown || state == State::kDown) {
    observe::log_warning("{} worker {} is {}: {}", role, worker.address.url,
                         state == State::kDown ? "down" : "not ready", why);
  }
  if (state == State::kDown && events_.down) events_.down(id);
}

void WorkerRegistry::complain(Worker& worker, const std::string& what) {
  if (worker.complaint == what) return;
  worker.complaint = what;
  observe::log_error("worker {}: {}", worker.address.url, what);
}

bool WorkerRegistry::breaker_open(WorkerId id) const { return workers_[id]->open_until > now(); }

bool WorkerRegistry::available(WorkerId id) const {
  return up(id) && !silent(id) && !draining(id) && !breaker_open(id);
}

bool WorkerRegistry::servable(const ServedModel& model) const {
  std::vector<uint32_t> prefills;
  std::vector<uint32_t> decodes;
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!up(id) || draining(id) || !serves(id, model)) continue;
    if (role(id) == WorkerRole::kUnified) return true;
    (role(id) == WorkerRole::kPrefill ? prefills : decodes).push_back(group(id));
  }
  return std::ranges::any_of(
      prefills, [&](uint32_t group) { return std::ranges::find(decodes, group) != decodes.end(); });
}

bool WorkerRegistry::ready() const {
  return std::any_of(models_->all().begin(), models_->all().end(),
                     [&](const ModelList::Pointer& model) { return servable(*model); });
}

bool WorkerRegistry::complete() const {
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!up(id) && state(id) != State::kRemoved) return false;
  }
  return ready();
}

int64_t WorkerRegistry::answering(const ServedModel& model) const {
  int64_t count = 0;
  for (WorkerId id = 0; id < workers_.size(); ++id)
    count += up(id) && role(id) != WorkerRole::kPrefill && serves(id, model) ? 1 : 0;
  return count;
}

int32_t WorkerRegistry::ranks(WorkerId id) const {
  return connector(id).picks_rank ? std::max(1, engine(id).dp_size) : 1;
}

void WorkerRegistry::snapshots(const ServedModel& model, std::span<const HeldPrefix> held,
                               int32_t block_tokens, std::vector<WorkerSnapshot>& out) const {
  out.clear();
  const TimePoint at = now();
  bool some[3] = {false, false, false};
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!serves(id, model)) continue;
    const Worker& worker = *workers_[id];
    WorkerSnapshot snapshot;
    snapshot.id = id;
    snapshot.role = worker.address.role;
    snapshot.group = worker.group;
    snapshot.available = up(id) && !worker.silent && !worker.draining && worker.open_until <= at;
    some[static_cast<size_t>(snapshot.role)] |= snapshot.available;
    snapshot.capacity_tokens = worker.info.token_capacity;
    snapshot.prefill_rate = PrefillRate::shared(worker.prefill_rates);
    snapshot.decode_step_seconds = worker.step_seconds;
    const int32_t count = ranks(id);
    for (int32_t number = 0; number < count; ++number) {
      const auto place = static_cast<size_t>(number);
      const Load& load = ledger_.of(id, static_cast<uint32_t>(number));
      snapshot.rank = number;
      snapshot.key = number == 0 ? worker.key : mix64(worker.key + place);
      snapshot.recent_tokens = snapshot.reusable_tokens = 0;
      if (place < worker.recent_tokens.size()) {
        snapshot.recent_tokens = worker.recent_tokens[place].of_minute(at);
        snapshot.reusable_tokens = worker.recent_tokens[place].of_ten_minutes(at);
      }
      snapshot.queued_tokens = load.queued_tokens;
      snapshot.running = static_cast<int32_t>(
          std::min<int64_t>(load.running + worker.others_requests / count, 1 << 30));
      snapshot.held_tokens = load.held_tokens;
      out.push_back(snapshot);
    }
  }
  for (const HeldPrefix& one : held) {
    // Where a rank cannot be chosen, what any of them holds counts as the worker's.
    const int32_t rank =
        one.worker < workers_.size() && one.rank < ranks(one.worker) ? one.rank : 0;
    const auto at_rank = std::ranges::lower_bound(
        out, std::pair(one.worker, rank), {},
        [](const WorkerSnapshot& snapshot) { return std::pair(snapshot.id, snapshot.rank); });
    if (at_rank == out.end() || at_rank->id != one.worker) continue;
    at_rank->prefix_blocks =
        std::max(at_rank->prefix_blocks, static_cast<int32_t>(one.credit) / block_tokens);
  }
  for (WorkerSnapshot& snapshot : out) {
    const Worker& worker = *workers_[snapshot.id];
    if (!some[static_cast<size_t>(snapshot.role)])
      snapshot.available = up(snapshot.id) && !worker.draining;
  }
}

void WorkerRegistry::leg_died(WorkerId id, const std::string& error_code) {
  Worker& worker = *workers_[id];
  if (error_code == "connect_refused") {
    client_.drop_idle(worker.url.host, worker.url.port);
    worker.away = true;
    set_state(id, State::kDown, "nobody listens");
  }
  worker.poke.notify();
}

void WorkerRegistry::look_again(WorkerId id) { workers_[id]->poke.notify(); }

void WorkerRegistry::heard(WorkerId id) { workers_[id]->heard = now(); }

void WorkerRegistry::charge(WorkerId id) {
  Worker& worker = *workers_[id];
  if (++worker.charged < options_.breaker_failures) return;
  worker.open_until = now() + options_.breaker_open;
  observe::log_warning("worker {} failed {} times in a row; it gets nothing for a while",
                       worker.address.url, worker.charged);
}

void WorkerRegistry::succeeded(WorkerId id) {
  workers_[id]->charged = 0;
  workers_[id]->open_until = {};
}

void WorkerRegistry::measured_prefill(WorkerId id, int32_t rank, TimePoint sent, int64_t tokens) {
  of_rank(workers_[id]->prefill_rates, rank).computed(sent, now(), tokens);
}

void WorkerRegistry::touched(WorkerId id, int32_t rank, std::span<const uint64_t> blocks,
                             int32_t block_tokens) {
  if (workers_[id]->state == State::kRemoved) return;  // legs there may still go on
  of_rank(workers_[id]->recent_tokens, rank).touch(blocks, block_tokens, now());
}

void WorkerRegistry::measured_step(WorkerId id, double seconds) {
  double& step = workers_[id]->step_seconds;
  step = smooth(step, std::clamp(seconds, 1e-5, 10.0));
}

}  // namespace tandem::router
