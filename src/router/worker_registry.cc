#include "router/worker_registry.h"

#include <algorithm>
#include <utility>

#include "observe/log.h"
#include "router/policy/policy.h"

namespace tandem::router {

namespace {

constexpr size_t kInfoBytes = 64UL << 10;
constexpr size_t kTokenizerBytes = 256UL << 20;
constexpr Duration kTokenizerTime = std::chrono::seconds(30);

double smooth(double old, double fresh) { return old + 0.2 * (fresh - old); }

std::string text_of(const JsonValue* json, std::string_view key) {
  const JsonValue* const value = json == nullptr ? nullptr : json->find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

int64_t number_of(const JsonValue* json, std::string_view key) {
  const JsonValue* const value = json == nullptr ? nullptr : json->find(key);
  return value == nullptr ? 0 : value->as_integer().value_or(0);
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

Result<WorkerInfo> parse_worker_info(const JsonValue& json) {
  const auto bad = [](const char* what) {
    return make_error(502, "bad_worker_info", std::string("the worker's /tandem/v1/info ") + what);
  };
  if (number_of(&json, "version") != 1)
    return bad("has another version; use the same build for router and workers");
  WorkerInfo info;
  const std::string role = text_of(&json, "role");
  if (role == "prefill") {
    info.role = WorkerRole::kPrefill;
  } else if (role == "decode") {
    info.role = WorkerRole::kDecode;
  } else if (role != "unified") {
    return bad("has an unknown role");
  }
  const JsonValue* const model = json.find("model");
  info.epoch = text_of(&json, "epoch");
  info.model_id = text_of(model, "id");
  info.context_length = number_of(model, "context_length");
  info.lineage = text_of(model, "lineage");
  info.block_tokens =
      static_cast<int32_t>(std::clamp<int64_t>(number_of(&json, "block_tokens"), 0, 1 << 16));
  info.handoff_address = text_of(&json, "handoff_address");
  info.token_capacity = number_of(&json, "token_capacity");
  if (const JsonValue* const adapters = model == nullptr ? nullptr : model->find("adapters");
      adapters != nullptr && adapters->is_array()) {
    for (const JsonValue& name : adapters->items()) {
      if (name.is_string()) info.adapters.push_back(name.as_string());
    }
    std::sort(info.adapters.begin(), info.adapters.end());
  }
  if (info.epoch.empty() || info.model_id.empty() || info.context_length <= 0 ||
      info.block_tokens <= 0) {
    return bad("lacks epoch, model or block_tokens");
  }
  if (info.role == WorkerRole::kPrefill && info.handoff_address.empty())
    return bad("lacks handoff_address");
  return info;
}

WorkerRegistry::WorkerRegistry(net::Reactor& reactor, net::HttpClient& client,
                               RegistryOptions options, Events events)
    : reactor_(reactor),
      client_(client),
      options_(std::move(options)),
      events_(std::move(events)) {}

WorkerId WorkerRegistry::add(const WorkerAddress& address, const net::Url& url) {
  auto worker = std::make_unique<Worker>(reactor_);
  worker->url_text = address.url;
  worker->url = url;
  worker->role = address.role;
  workers_.push_back(std::move(worker));
  return static_cast<WorkerId>(workers_.size() - 1);
}

void WorkerRegistry::move(WorkerId id, const std::string& url_text, const net::Url& url) {
  Worker& worker = *workers_[id];
  client_.drop_idle(worker.url.host, worker.url.port);
  set_state(id, State::kDown, "it moved");
  worker.url_text = url_text;
  worker.url = url;
  worker.poke.notify();
}

void WorkerRegistry::start(std::shared_ptr<void> keep_alive) {
  for (WorkerId id = 0; id < workers_.size(); ++id) reactor_.spawn(poll(id, keep_alive));
}

void WorkerRegistry::stop() {
  stopping_ = true;
  for (const auto& worker : workers_) worker->poke.notify();
}

net::asio::awaitable<void> WorkerRegistry::poll(WorkerId id, std::shared_ptr<void> keep_alive) {
  Worker& worker = *workers_[id];
  while (!stopping_) {
    const bool answered = co_await poll_once(id);
    if (stopping_) break;
    // A first silence is followed up at once: two limits, not two intervals more, until a stopped
    // worker is noticed.
    if (!answered && worker.failures > 0 && worker.failures < options_.poll_failures) continue;
    co_await worker.poke.wait_for(options_.poll_interval);
  }
}

net::asio::awaitable<Result<net::WholeResponse>> WorkerRegistry::get(WorkerId id, std::string path,
                                                                     Duration limit,
                                                                     size_t max_bytes) {
  const Worker& worker = *workers_[id];
  net::ClientRequest request;
  request.host = worker.url.host;
  request.port = worker.url.port;
  request.tls = worker.url.tls;
  request.target = worker.url.base + path;
  if (!options_.secret.empty()) request.headers.add("x-tandem-auth", options_.secret);
  return net::fetch(client_, std::move(request), {limit, limit, limit}, max_bytes);
}

// True when the worker answered, well or not.
net::asio::awaitable<bool> WorkerRegistry::poll_once(WorkerId id) {
  Worker& worker = *workers_[id];
  const std::string url_before = worker.url_text;
  Result<net::WholeResponse> ready = co_await get(id, "/ready", options_.poll_timeout, kInfoBytes);
  Result<net::WholeResponse> info = internal_error("");
  if (ready && ready->status == 200)
    info = co_await get(id, "/tandem/v1/info", options_.poll_timeout, kInfoBytes);
  if (stopping_ || worker.url_text != url_before) co_return true;
  if (!ready || (ready->status == 200 && !info)) {
    const Error& error = ready ? info.error() : ready.error();
    ++worker.failures;
    if (error.code == "connect_refused" || worker.failures >= options_.poll_failures) {
      client_.drop_idle(worker.url.host, worker.url.port);
      set_state(id, State::kDown, error.message);
    }
    co_return false;
  }
  worker.failures = 0;
  if (ready->status != 200) {
    set_state(id, State::kNotReady, "it is not ready");
    co_return true;
  }
  Status accepted = make_error(502, "bad_worker_info",
                               "/tandem/v1/info answered " + std::to_string(info->status) +
                                   "; is the secret the same and the URL a Tandem worker's?");
  if (info->status == 200) {
    Result<JsonValue> json = parse_json(info->body);
    Result<WorkerInfo> parsed = json ? parse_worker_info(*json) : tl::unexpected(json.error());
    accepted =
        parsed ? accept_info(worker, id, std::move(*parsed)) : tl::unexpected(parsed.error());
    const auto model = models_->named(worker.info.model_id);
    if (accepted && !(model && serves(id, *model))) accepted = co_await load_model(id);
  }
  if (stopping_ || worker.url_text != url_before) co_return true;
  forget_unserved_models();
  if (accepted) {
    worker.complaint.clear();
    set_state(id, State::kUp, "");
  } else {
    complain(worker, accepted.error().message);
    set_state(id, State::kNotReady, "it cannot be used");
  }
  co_return true;
}

Status WorkerRegistry::accept_info(Worker& worker, WorkerId id, WorkerInfo info) {
  if (!worker.info.epoch.empty() && worker.info.epoch != info.epoch) {
    // Another process: whatever ran there is gone, and so is its cache.
    client_.drop_idle(worker.url.host, worker.url.port);
    if (worker.state == State::kUp) set_state(id, State::kDown, "it was restarted");
    worker.charged = 0;
    worker.open_until = {};
    if (events_.new_epoch) events_.new_epoch(id);
  }
  worker.info = std::move(info);
  if (worker.info.role != worker.role) {
    return make_error(502, "wrong_role",
                      std::string("it is a ") + role_name(worker.info.role) +
                          " worker but was given as a " + role_name(worker.role) + " worker");
  }
  return check_agreement(worker.info, id);
}

// Workers of one model agree in all that a request may meet: it can land on any of them.
Status WorkerRegistry::check_agreement(const WorkerInfo& info, WorkerId id) const {
  for (const ModelList::Pointer& other : models_->all()) {
    if (other->id != info.model_id &&
        (other->has_adapter(info.model_id) ||
         std::any_of(info.adapters.begin(), info.adapters.end(), [&](const std::string& name) {
           return name == other->id || other->has_adapter(name);
         })))
      return make_error(502, "name_taken",
                        "it serves '" + info.model_id + "' with names that '" + other->id +
                            "' has already; give other names (--served-model-name, --adapter)");
  }
  const auto model = models_->named(info.model_id);
  if (!model || !in_use(*model, id)) return {};
  if (model->lineage != info.lineage) {
    return make_error(502, "wrong_model",
                      "it serves another model under the name '" + info.model_id +
                          "' than the other workers; give it another --served-model-name");
  }
  if (model->block_tokens != info.block_tokens) {
    return make_error(502, "wrong_block_size",
                      "it was started with --block-tokens " + std::to_string(info.block_tokens) +
                          ", but the other workers of its model with " +
                          std::to_string(model->block_tokens) + "; give all the same");
  }
  if (model->adapters != info.adapters) {
    return make_error(502, "wrong_adapters",
                      "it has other adapters than the other workers of its model; give all the "
                      "same --adapter options");
  }
  return {};
}

bool WorkerRegistry::serves(WorkerId id, const ServedModel& model) const {
  const WorkerInfo& info = workers_[id]->info;
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

net::asio::awaitable<Status> WorkerRegistry::load_model(WorkerId id) {
  const WorkerInfo info = workers_[id]->info;
  Result<net::WholeResponse> answer =
      co_await get(id, "/tandem/v1/tokenizer", kTokenizerTime, kTokenizerBytes);
  if (!answer) co_return tl::unexpected(answer.error());
  if (answer->status != 200)
    co_return make_error(502, "no_tokenizer", "the worker does not give its tokenizer");
  Result<JsonValue> json = parse_json(answer->body);
  if (!json) co_return tl::unexpected(json.error());
  Result<text::TokenizerSpec> spec = text::tokenizer_spec_from_json(*json);
  if (!spec) co_return tl::unexpected(spec.error());
  auto model = std::make_shared<ServedModel>();
  model->id = info.model_id;
  model->context_length = info.context_length;
  model->lineage = info.lineage;
  model->block_tokens = info.block_tokens;
  model->adapters = info.adapters;
  if (!spec->chat_template.empty()) {
    Result<text::ChatTemplate> chat_template =
        text::ChatTemplate::parse(spec->chat_template, spec->tool_template);
    if (!chat_template) co_return tl::unexpected(chat_template.error());
    model->chat_template = std::make_unique<text::ChatTemplate>(std::move(*chat_template));
  }
  Result<std::shared_ptr<const text::Tokenizer>> tokenizer =
      text::Tokenizer::create(std::move(*spec));
  if (!tokenizer) co_return tl::unexpected(tokenizer.error());
  model->tokenizer = std::move(*tokenizer);
  // Two pollers may load at once; the first wins if they agree.
  const auto known = models_->named(info.model_id);
  if (known && serves(id, *known)) co_return Status();
  if (Status agrees = check_agreement(info, id); !agrees) co_return agrees;
  observe::log_info("serving '{}' with a context of {} tokens", model->id, model->context_length);
  std::vector<ModelList::Pointer> all = models_->all();
  std::erase(all, known);
  all.push_back(std::move(model));
  models_ = std::make_shared<const ModelList>(std::move(all));
  co_return Status();
}

void WorkerRegistry::set_state(WorkerId id, State state, const std::string& why) {
  Worker& worker = *workers_[id];
  if (worker.state == state) return;
  const State before = std::exchange(worker.state, state);
  const char* const role = role_name(worker.role);
  if (state == State::kUp) {
    observe::log_info("{} worker {} is up", role, worker.url_text);
  } else if (before != State::kUnknown || state == State::kDown) {
    observe::log_warning("{} worker {} is {}: {}", role, worker.url_text,
                         state == State::kDown ? "down" : "not ready", why);
  }
  if (state == State::kDown && events_.down) events_.down(id);
}

void WorkerRegistry::complain(Worker& worker, const std::string& what) {
  if (worker.complaint == what) return;
  worker.complaint = what;
  observe::log_error("worker {}: {}", worker.url_text, what);
}

bool WorkerRegistry::available(WorkerId id) const {
  return up(id) && workers_[id]->open_until <= std::chrono::steady_clock::now();
}

bool WorkerRegistry::servable(const ServedModel& model) const {
  bool prefill = false;
  bool decode = false;
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!up(id) || !serves(id, model)) continue;
    if (role(id) == WorkerRole::kUnified) return true;
    (role(id) == WorkerRole::kPrefill ? prefill : decode) = true;
  }
  return prefill && decode;
}

bool WorkerRegistry::ready() const {
  return std::any_of(models_->all().begin(), models_->all().end(),
                     [&](const ModelList::Pointer& model) { return servable(*model); });
}

bool WorkerRegistry::complete() const {
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!up(id)) return false;
  }
  return ready();
}

std::vector<WorkerSnapshot> WorkerRegistry::snapshots(const ServedModel& model,
                                                      const LoadLedger& ledger,
                                                      const std::vector<int32_t>& held) const {
  std::vector<WorkerSnapshot> all;
  all.reserve(workers_.size());
  for (WorkerId id = 0; id < workers_.size(); ++id) {
    if (!serves(id, model)) continue;
    const Worker& worker = *workers_[id];
    const Load& load = ledger.of(id);
    WorkerSnapshot snapshot;
    snapshot.id = id;
    snapshot.role = worker.role;
    snapshot.key = stable_hash(worker.url_text);
    snapshot.available = available(id);
    snapshot.prefill_rate = worker.prefill_rate;
    snapshot.decode_step_seconds = worker.step_seconds;
    snapshot.queued_tokens = load.queued_tokens;
    snapshot.running = load.running;
    snapshot.held_tokens = load.held_tokens;
    snapshot.capacity_tokens = worker.info.token_capacity;
    snapshot.prefix_blocks = id < held.size() ? held[id] : 0;
    all.push_back(snapshot);
  }
  return all;
}

void WorkerRegistry::leg_died(WorkerId id, const std::string& error_code) {
  Worker& worker = *workers_[id];
  if (error_code == "connect_refused") {
    client_.drop_idle(worker.url.host, worker.url.port);
    set_state(id, State::kDown, "nobody listens");
  }
  worker.poke.notify();
}

void WorkerRegistry::charge(WorkerId id) {
  Worker& worker = *workers_[id];
  if (++worker.charged < options_.breaker_failures) return;
  worker.open_until = std::chrono::steady_clock::now() + options_.breaker_open;
  observe::log_warning("worker {} failed {} times in a row; it gets nothing for a while",
                       worker.url_text, worker.charged);
}

void WorkerRegistry::succeeded(WorkerId id) {
  workers_[id]->charged = 0;
  workers_[id]->open_until = {};
}

void WorkerRegistry::measured_prefill(WorkerId id, double tokens_per_second) {
  double& rate = workers_[id]->prefill_rate;
  rate = smooth(rate, std::clamp(tokens_per_second, 1.0, 1e7));
}

void WorkerRegistry::measured_step(WorkerId id, double seconds) {
  double& step = workers_[id]->step_seconds;
  step = smooth(step, std::clamp(seconds, 1e-5, 10.0));
}

}  // namespace tandem::router
