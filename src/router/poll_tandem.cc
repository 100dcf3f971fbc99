// How the registry looks after Tandem's own workers.
#include <algorithm>
#include <utility>

#include "observe/log.h"
#include "router/worker_registry.h"

namespace tandem::router {

namespace {

constexpr size_t kInfoBytes = 64UL << 10;
constexpr size_t kTokenizerBytes = 256UL << 20;
constexpr Duration kTokenizerTime = std::chrono::seconds(30);

TimePoint now() { return std::chrono::steady_clock::now(); }

std::string text_of(const JsonValue* json, std::string_view key) {
  const JsonValue* const value = json == nullptr ? nullptr : json->find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

int64_t number_of(const JsonValue* json, std::string_view key) {
  const JsonValue* const value = json == nullptr ? nullptr : json->find(key);
  return value == nullptr ? 0 : value->as_integer().value_or(0);
}

}  // namespace

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
  info.tokenizer = text_of(model, "tokenizer");
  info.block_tokens =
      static_cast<int32_t>(std::clamp<int64_t>(number_of(&json, "block_tokens"), 0, 1 << 16));
  info.handoff_address = text_of(&json, "handoff_address");
  info.token_capacity = number_of(&json, "token_capacity");
  if (const JsonValue* const events = json.find("kv_events"); events != nullptr) {
    info.kv_events = text_of(events, "endpoint");
    const std::string replay = text_of(events, "replay_endpoint");
    if (!info.kv_events.empty() && !replay.empty()) info.kv_events += "," + replay;
  }
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

// True when the worker answered, well or not.
net::asio::awaitable<bool> WorkerRegistry::poll_tandem(WorkerId id) {
  Worker& worker = *workers_[id];
  const std::string url_before = worker.address.url;
  Result<net::WholeResponse> ready = co_await get(id, "/ready", options_.poll_timeout, kInfoBytes);
  Result<net::WholeResponse> info = internal_error("");
  if (ready && ready->status == 200)
    info = co_await get(id, "/tandem/v1/info", options_.poll_timeout, kInfoBytes);
  if (stopping_ || worker.address.url != url_before) co_return true;
  if (!ready || (ready->status == 200 && !info)) {
    const Error& error = ready ? info.error() : ready.error();
    ++worker.failures;
    // Who sends tokens is not frozen.
    const bool alive = now() - worker.heard < options_.poll_timeout;
    if (error.code == "connect_refused" || (worker.failures >= options_.poll_failures && !alive)) {
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
  if (stopping_ || worker.address.url != url_before) co_return true;
  forget_unserved_models();
  if (accepted) {
    worker.complaint.clear();
    if (events_.learned) events_.learned(id);
    set_state(id, State::kUp, "");
  } else {
    complain(worker, accepted.error().message);
    set_state(id, State::kNotReady, "it cannot be used");
  }
  co_return true;
}

Status WorkerRegistry::accept_info(Worker& worker, WorkerId id, WorkerInfo info) {
  if (!worker.info.epoch.empty() && worker.info.epoch != info.epoch) restarted(id);
  worker.info = std::move(info);
  if (worker.address.kv_events.empty()) worker.engine.kv_events = worker.info.kv_events;
  if (worker.info.role != worker.address.role) {
    return make_error(502, "wrong_role",
                      std::string("it is a ") + role_name(worker.info.role) +
                          " worker but was given as a " + role_name(worker.address.role) +
                          " worker");
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
  if (model->opaque()) {
    return make_error(502, "wrong_connector",
                      "its model '" + info.model_id + "' is served by " +
                          std::string(model->connector->name) +
                          " workers already; give it another --served-model-name");
  }
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

// The worker's tokenizer and template: those at hand that have the identity which it tells, or what
// it gives.
net::asio::awaitable<Result<ServedText>> WorkerRegistry::load_text(WorkerId id) {
  const std::string identity = workers_[id]->info.tokenizer;
  const auto found = std::ranges::find(options_.texts, identity, &ServedText::identity);
  if (!identity.empty() && found != options_.texts.end()) co_return *found;
  Result<net::WholeResponse> answer =
      co_await get(id, "/tandem/v1/tokenizer", kTokenizerTime, kTokenizerBytes);
  if (!answer) co_return tl::unexpected(answer.error());
  if (answer->status != 200)
    co_return make_error(502, "no_tokenizer", "the worker does not give its tokenizer");
  Result<JsonValue> json = parse_json(answer->body);
  if (!json) co_return tl::unexpected(json.error());
  Result<text::TokenizerSpec> spec = text::tokenizer_spec_from_json(*json);
  if (!spec) co_return tl::unexpected(spec.error());
  co_return make_served_text(std::move(*spec));
}

net::asio::awaitable<Status> WorkerRegistry::load_model(WorkerId id) {
  const WorkerInfo info = workers_[id]->info;
  Result<ServedText> text = co_await load_text(id);
  if (!text) co_return tl::unexpected(text.error());
  auto model = std::make_shared<ServedModel>();
  model->id = info.model_id;
  model->connector = workers_[id]->connector;
  model->context_length = info.context_length;
  model->lineage = info.lineage;
  model->block_tokens = info.block_tokens;
  model->adapters = info.adapters;
  model->chat_template = std::move(text->chat_template);
  model->tokenizer = std::move(text->tokenizer);
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

}  // namespace tandem::router
