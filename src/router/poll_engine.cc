// How the registry looks after engines that are not Tandem's.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "observe/log.h"
#include "router/connectors/harvest.h"
#include "router/worker_registry.h"

namespace tandem::router {

namespace {

constexpr size_t kReplyBytes = 1UL << 20;
constexpr size_t kMetricsBytes = 8UL << 20;
constexpr size_t kProbesAtOnce = 8;  // ranks of one worker

TimePoint now() { return std::chrono::steady_clock::now(); }

tl::unexpected<Error> unexpected_status(std::string_view path, int status) {
  return make_error(502, "bad_worker_info",
                    "its " + std::string(path) + " answered " + std::to_string(status));
}

tl::unexpected<Error> not_a_worker() {
  return make_error(502, "worker_removed", "it is not a worker any more");
}

// It took the connection, and that is all.
bool says_nothing(const Error& error) {
  return error.code == "head_timeout" || error.code == "body_timeout";
}

}  // namespace

// True when the worker answered, well or not.
net::asio::awaitable<bool> WorkerRegistry::poll_engine(WorkerId id) {
  Worker& worker = *workers_[id];
  const std::string url_before = worker.address.url;
  const auto outdated = [&] {
    return stopping_ || worker.state == State::kRemoved || worker.address.url != url_before;
  };
  Result<net::WholeResponse> health = co_await get(
      id, std::string(worker.connector->endpoints.health), options_.health_timeout, kReplyBytes);
  if (outdated()) co_return true;
  if (!health) {
    not_answered(id, health.error());
    co_return false;
  }
  worker.failures = 0;
  worker.silent = false;
  worker.heard = now();
  // Anybody's server: /v1/models decides where there is no route for health.
  const bool lacks_route = health->status == 404 && worker.connector->order == LegOrder::kAlone;
  if (health->status != 200 && !lacks_route) {
    worker.successes = 0;
    set_state(id, State::kNotReady, "its health route answers " + std::to_string(health->status));
    co_return true;
  }
  Status learned;
  if (worker.state != State::kUp || now() >= worker.relearn_at) {
    learned = co_await learn_engine(id);
  } else if (worker.connector->identity == IdentitySource::kBootstrapQuery &&
             worker.address.role == WorkerRole::kPrefill) {
    learned = co_await learn_engine_ids(id);  // as cheap as the health route
  }
  if (outdated()) co_return true;
  if (!learned && worker.state == State::kUp && says_nothing(learned.error())) {
    not_answered(id, learned.error());
    co_return false;
  }
  if (!learned) {
    worker.successes = 0;
    complain(worker, learned.error().message);
    set_state(id, State::kNotReady, "it cannot be used");
    co_return true;
  }
  worker.complaint.clear();
  ++worker.successes;
  if (worker.state != State::kUp && worker.was_up && worker.successes < options_.health_successes) {
    worker.poke.notify();  // the next look decides, and need not wait
    co_return true;
  }
  co_await read_load(id);
  if (!outdated() && events_.learned) events_.learned(id);
  if (!outdated()) set_state(id, State::kUp, "");
  co_return true;
}

// An engine that is busy answers late: what it does for our requests counts for more than its
// health route. Only who takes no connection, or has nothing of ours to be busy with, is down.
void WorkerRegistry::not_answered(WorkerId id, const Error& error) {
  Worker& worker = *workers_[id];
  ++worker.failures;
  worker.successes = 0;
  const Duration quiet = now() - worker.heard;
  const bool refused = error.code == "connect_refused";
  if (!refused && worker.failures < options_.health_failures) return;
  // The next look needs a connection of its own.
  client_.drop_idle(worker.url.host, worker.url.port);
  if (!refused && worker.state == State::kUp) {
    if (quiet < options_.health_timeout) return;
    const bool patient =
        options_.silence_limit == Duration::zero() || quiet < options_.silence_limit;
    if (says_nothing(error) && patient && ledger_.of(id).running > 0) {
      if (!std::exchange(worker.silent, true))
        observe::log_warning(
            "worker {} does not answer {} while it has requests: new ones avoid it",
            worker.address.url, worker.connector->endpoints.health);
      return;
    }
  }
  worker.away = true;
  set_state(id, State::kDown, error.message);
}

net::asio::awaitable<Status> WorkerRegistry::learn_engine(WorkerId id) {
  Worker& worker = *workers_[id];
  // It was gone and is there again: another process, whatever it says of itself.
  if (worker.away && worker.was_up) restarted(id);
  worker.away = false;
  if (Status models = co_await learn_models(id); !models) co_return models;
  Status learned = co_await learn_identity_of(id);
  if (learned) worker.relearn_at = now() + options_.relearn_interval;
  co_return learned;
}

net::asio::awaitable<Status> WorkerRegistry::learn_identity_of(WorkerId id) {
  const Worker& worker = *workers_[id];
  if (!worker.connector->endpoints.info.empty()) {
    if (Status learned = co_await learn_server_info(id); !learned) co_return learned;
  }
  // A unified worker has no pair that would look for it.
  if (worker.address.role != WorkerRole::kPrefill) co_return Status();
  if (worker.connector->identity == IdentitySource::kBootstrapQuery)
    co_return co_await learn_engine_ids(id);
  if (worker.connector->identity != IdentitySource::kPrefillReply) co_return Status();
  co_return co_await learn_identities(id, unknown_ranks(id));
}

std::vector<int32_t> WorkerRegistry::unknown_ranks(WorkerId id) const {
  const auto& known = workers_[id]->engine.identities;
  std::vector<int32_t> unknown;
  for (int32_t rank = 0; rank < ranks(id); ++rank) {
    const auto place = static_cast<size_t>(rank);
    if (place >= known.size() || known[place].engine_id.empty()) unknown.push_back(rank);
  }
  return unknown;
}

net::asio::awaitable<void> WorkerRegistry::relearn(WorkerId id, int32_t rank) {
  Worker& worker = *workers_[id];
  if (!worker.connector->opaque || worker.state == State::kRemoved) co_return;
  // Many legs fail at once when a process ends: one of them asks.
  if (const std::shared_ptr<Asking> other = worker.asking; other != nullptr) {
    while (!other->over) co_await other->done.wait();
    co_return;
  }
  const auto asking = std::make_shared<Asking>(reactor_);
  worker.asking = asking;
  const bool of_replies = worker.connector->identity == IdentitySource::kPrefillReply;
  const Status learned =
      of_replies ? co_await learn_anew(id, rank) : co_await learn_identity_of(id);
  worker.asking.reset();
  asking->over = true;
  asking->done.notify();
  if (!learned) worker.poke.notify();
}

// One rank tells whether it is the same process still; only of another one all ranks are asked.
// What is known stays until it is replaced: other requests need something to go on.
net::asio::awaitable<Status> WorkerRegistry::learn_anew(WorkerId id, int32_t rank) {
  Worker& worker = *workers_[id];
  rank = std::max(rank, 0);
  const auto engine_id = [&worker, place = static_cast<size_t>(rank)] {
    const auto& all = worker.engine.identities;
    return place < all.size() ? all[place].engine_id : std::string();
  };
  const std::string before = engine_id();
  if (Status learned = co_await learn_identity(id, rank); !learned) co_return learned;
  const bool same = engine_id() == before;
  if (same && !worker.ranks_outdated) co_return Status();
  if (!same && !before.empty() && events_.new_epoch) events_.new_epoch(id);
  std::vector<int32_t> others;
  for (int32_t other = 0; other < ranks(id); ++other) {
    if (other != rank) others.push_back(other);
  }
  Status all = co_await learn_identities(id, std::move(others));
  if (all) worker.ranks_outdated = false;
  co_return all;
}

// Several at once: an engine answers for each rank in a step of that rank's.
net::asio::awaitable<Status> WorkerRegistry::learn_identities(WorkerId id,
                                                              std::vector<int32_t> of) {
  const auto probes = std::make_shared<Probes>(reactor_);
  probes->ranks = std::move(of);
  const size_t at_once = std::min(probes->ranks.size(), kProbesAtOnce);
  probes->running = at_once;
  for (size_t i = 0; i < at_once; ++i) reactor_.spawn(probe_ranks(id, probes, keep_alive_));
  while (probes->running > 0) co_await probes->done.wait();
  co_return probes->status;
}

net::asio::awaitable<void> WorkerRegistry::probe_ranks(WorkerId id, std::shared_ptr<Probes> probes,
                                                       std::shared_ptr<void> keep_alive) {
  (void)keep_alive;
  while (probes->status && probes->next < probes->ranks.size()) {
    const int32_t rank = probes->ranks[probes->next++];
    if (Status learned = co_await learn_identity(id, rank); !learned) probes->status = learned;
  }
  if (--probes->running == 0) probes->done.notify();
}

net::asio::awaitable<Status> WorkerRegistry::learn_models(WorkerId id) {
  Worker& worker = *workers_[id];
  std::vector<EngineModel> models{{worker.address.model, 0}};
  if (worker.address.model.empty()) {
    Result<net::WholeResponse> reply =
        co_await get(id, "/v1/models", options_.health_timeout, kReplyBytes);
    if (!reply) co_return tl::unexpected(reply.error());
    if (reply->status != 200) co_return unexpected_status("/v1/models", reply->status);
    Result<std::vector<EngineModel>> listed = parse_model_list(reply->body);
    if (!listed) co_return tl::unexpected(listed.error());
    models = std::move(*listed);
  }
  if (worker.state == State::kRemoved) co_return not_a_worker();
  for (const EngineModel& model : models) {
    const auto known = models_->named(model.id);
    const bool theirs = known && known->connector != worker.connector;
    if (theirs && in_use(*known, id)) {
      co_return make_error(502, "wrong_connector",
                           "its model '" + model.id + "' is served by " +
                               std::string(known->connector->name) +
                               " workers already; one kind at a time");
    }
  }
  worker.info.model_id = models.front().id;
  worker.info.context_length = models.front().context_length;
  worker.engine.models = std::move(models);
  publish_models(id);
  co_return Status();
}

// Makes the models of an engine known.
void WorkerRegistry::publish_models(WorkerId id) {
  const Worker& worker = *workers_[id];
  std::vector<ModelList::Pointer> all = models_->all();
  bool changed = false;
  for (const EngineModel& engine_model : worker.engine.models) {
    const auto known = models_->named(engine_model.id);
    if (known && serves(id, *known)) continue;
    auto model = std::make_shared<ServedModel>();
    model->id = engine_model.id;
    model->parent = engine_model.parent;
    model->context_length = engine_model.context_length;
    model->connector = worker.connector;
    observe::log_info("serving '{}' of {} workers", model->id, model->connector->name);
    std::erase(all, known);
    all.push_back(std::move(model));
    changed = true;
  }
  if (changed) models_ = std::make_shared<const ModelList>(std::move(all));
  forget_unserved_models();
}

net::asio::awaitable<Status> WorkerRegistry::learn_server_info(WorkerId id) {
  Worker& worker = *workers_[id];
  const EngineEndpoints& paths = worker.connector->endpoints;
  Result<net::WholeResponse> reply =
      co_await get(id, std::string(paths.info), options_.health_timeout, kReplyBytes);
  if (reply && reply->status == 404 && !paths.old_info.empty())
    reply = co_await get(id, std::string(paths.old_info), options_.health_timeout, kReplyBytes);
  if (!reply) co_return tl::unexpected(reply.error());
  if (reply->status != 200) co_return unexpected_status(paths.info, reply->status);
  Result<ServerInfo> info = parse_server_info(reply->body);
  if (!info) co_return tl::unexpected(info.error());
  const char* const role = role_name(worker.address.role);
  const bool told = !info->mode.empty() && info->mode != "null";
  if (worker.address.role != WorkerRole::kUnified && told && info->mode != role) {
    co_return make_error(
        502, "wrong_role",
        "it runs in mode '" + info->mode + "' but was given as a " + role + " worker");
  }
  if (!worker.info.epoch.empty() && worker.info.epoch != info->epoch) restarted(id);
  worker.info.epoch = info->epoch;
  worker.engine.dp_size = worker.address.dp_size > 0 ? worker.address.dp_size : info->dp_size;
  if (worker.address.bootstrap_port == 0 && info->bootstrap_port != 0)
    worker.engine.bootstrap_port = info->bootstrap_port;
  worker.engine.context_endpoint = info->context_endpoint;
  worker.engine.context_dp_rank = info->context_dp_rank;
  if (worker.address.kv_events.empty()) worker.engine.kv_events = info->kv_events;
  co_return Status();
}

net::asio::awaitable<Status> WorkerRegistry::learn_engine_ids(WorkerId id) {
  Worker& worker = *workers_[id];
  net::ClientRequest request;
  request.host = worker.url.host;
  request.port = worker.engine.bootstrap_port;
  request.target = "/query";
  const Duration limit = options_.health_timeout;
  Result<net::WholeResponse> reply =
      co_await net::fetch(client_, std::move(request), {limit, limit, limit}, kReplyBytes);
  if (!reply) {
    co_return make_error(502, reply.error().code,
                         "its bootstrap server on port " +
                             std::to_string(worker.engine.bootstrap_port) +
                             " does not answer: " + reply.error().message);
  }
  if (reply->status != 200) co_return unexpected_status("bootstrap server's /query", reply->status);
  Result<std::vector<std::string>> engines = parse_mooncake_query(reply->body);
  if (!engines) co_return tl::unexpected(engines.error());
  const bool changed = !worker.engine.engine_ids.empty() && worker.engine.engine_ids != *engines;
  worker.engine.engine_ids = std::move(*engines);
  worker.engine.dp_size = static_cast<int32_t>(worker.engine.engine_ids.size());
  worker.info.epoch = worker.engine.engine_ids.front();
  if (changed && events_.new_epoch) events_.new_epoch(id);
  co_return Status();
}

// One token is prefilled for nobody; the block it holds goes when its lease runs out.
net::asio::awaitable<Status> WorkerRegistry::learn_identity(WorkerId id, int32_t rank) {
  Worker& worker = *workers_[id];
  if (stopping_ || worker.engine.models.empty()) co_return not_a_worker();
  net::ClientRequest request;
  request.method = "POST";
  request.host = worker.url.host;
  request.port = worker.url.port;
  request.tls = worker.url.tls;
  request.target = worker.url.base + "/v1/completions";
  request.headers.add("Content-Type", "application/json");
  add_own_headers(id, request.headers);
  if (ranks(id) > 1) {
    LegValues values;
    values.dp_rank = rank;
    for (auto& [name, value] : leg_headers(*worker.connector, LegPart::kPrefill, values))
      request.headers.set(name, std::move(value));
  }
  request.body = identity_probe(*worker.connector, worker.engine.models.front().id);
  const Duration limit = std::max<Duration>(options_.health_timeout, std::chrono::seconds(10));
  Result<net::WholeResponse> reply =
      co_await net::fetch(client_, std::move(request), {limit, limit, limit}, kReplyBytes);
  if (!reply) co_return tl::unexpected(reply.error());
  if (reply->status != 200) co_return unexpected_status("/v1/completions", reply->status);
  Result<Harvest> harvested = harvest(*worker.connector, Api::kCompletions, reply->body);
  if (!harvested) co_return tl::unexpected(harvested.error());
  const std::optional<PrefillIdentity> identity = identity_of(*harvested);
  if (!identity) {
    co_return make_error(502, "bad_worker_info",
                         "it does not say who it is (kv_transfer_params of a prefill's answer)");
  }
  keep_identity(worker, rank, *identity);
  co_return Status();
}

void WorkerRegistry::keep_identity(Worker& worker, int32_t rank, const PrefillIdentity& identity) {
  auto& all = worker.engine.identities;
  if (static_cast<size_t>(rank) >= all.size()) all.resize(static_cast<size_t>(rank) + 1);
  all[static_cast<size_t>(rank)] = identity;
  worker.info.epoch = all.front().engine_id;
}

bool WorkerRegistry::identity_seen(WorkerId id, int32_t rank, const PrefillIdentity& identity) {
  Worker& worker = *workers_[id];
  const auto& known = worker.engine.identities;
  const auto place = static_cast<size_t>(rank);
  if (place < known.size() && known[place].engine_id == identity.engine_id) return false;
  keep_identity(worker, rank, identity);
  worker.ranks_outdated = ranks(id) > 1;
  if (events_.new_epoch) events_.new_epoch(id);
  return true;
}

net::asio::awaitable<void> WorkerRegistry::read_load(WorkerId id) {
  Worker& worker = *workers_[id];
  const EngineEndpoints& all = worker.connector->endpoints;
  const std::array<std::string_view, 3> paths = {all.load, all.old_load, all.metrics};
  for (; worker.load_path < paths.size(); ++worker.load_path) {
    const std::string path(paths[worker.load_path]);
    if (path.empty()) continue;
    Result<net::WholeResponse> reply =
        co_await get(id, path, options_.health_timeout, kMetricsBytes);
    if (stopping_ || !reply) co_return;  // the next look will say
    std::optional<EngineLoad> load;
    if (reply->status == 200) {
      load = path == all.metrics ? parse_load_metrics(reply->body, all.running, all.waiting)
                                 : parse_load_reply(reply->body);
    }
    if (load) {
      worker.others_requests =
          std::max<int64_t>(0, load->requests - static_cast<int64_t>(ledger_.of(id).running));
      co_return;
    }
  }
}

}  // namespace tandem::router
