// The routes of MockServer that do not generate.
#include <array>
#include <cstdlib>
#include <span>

#include "mock/answers.h"
#include "mock/mock_server.h"
#include "text/byte_tokenizer.h"

namespace tandem::mock {

namespace {

constexpr unsigned kAll = ~0U;
constexpr unsigned bit(Dialect dialect) { return 1U << static_cast<unsigned>(dialect); }
constexpr unsigned kVllm = bit(Dialect::kVllmNixl) | bit(Dialect::kVllmNixlPush) |
                           bit(Dialect::kVllmMooncake) | bit(Dialect::kVllmMoriio) |
                           bit(Dialect::kVllmMoriioWrite);

}  // namespace

struct MockServer::Route {
  std::string_view method;
  std::string_view path;
  unsigned dialects;
  int api;  // of those that generate; else -1
};

std::span<const MockServer::Route> MockServer::routes() {
  constexpr int kNo = -1;
  static constexpr std::array<Route, 32> kRoutes = {{
      {"POST", "/v1/chat/completions", kAll, static_cast<int>(Api::kChat)},
      {"POST", "/v1/completions", kAll, static_cast<int>(Api::kCompletions)},
      {"POST", "/v1/responses", kAll, static_cast<int>(Api::kResponses)},
      {"POST", "/v1/messages", kAll, static_cast<int>(Api::kMessages)},
      {"POST", "/v1/messages/count_tokens", kAll, kNo},
      {"POST", "/generate", bit(Dialect::kSglang), static_cast<int>(Api::kGenerate)},
      {"GET", "/health", kAll, kNo},
      {"GET", "/ready", kAll, kNo},
      {"GET", "/v1/models", kAll, kNo},
      {"GET", "/metrics", kAll, kNo},
      {"GET", "/mock/state", kAll, kNo},
      {"GET", "/mock/requests", kAll, kNo},
      {"POST", "/mock/faults", kAll, kNo},
      {"POST", "/mock/restart", kAll, kNo},
      {"GET", "/health_generate", bit(Dialect::kSglang), kNo},
      {"GET", "/server_info", bit(Dialect::kSglang), kNo},
      {"GET", "/get_server_info", bit(Dialect::kSglang), kNo},
      {"GET", "/model_info", bit(Dialect::kSglang), kNo},
      {"GET", "/get_model_info", bit(Dialect::kSglang), kNo},
      {"GET", "/v1/loads", bit(Dialect::kSglang), kNo},
      {"GET", "/get_load", bit(Dialect::kSglang), kNo},
      {"GET", "/flush_cache", bit(Dialect::kSglang), kNo},
      {"POST", "/flush_cache", bit(Dialect::kSglang), kNo},
      {"POST", "/abort_request", bit(Dialect::kSglang), kNo},
      {"GET", "/version", kVllm, kNo},
      {"GET", "/load", kVllm, kNo},
      {"POST", "/reset_prefix_cache", kVllm, kNo},
      {"GET", "/server_info", bit(Dialect::kTrtllm), kNo},
      {"GET", "/version", bit(Dialect::kTrtllm), kNo},
      {"GET", "/tandem/v1/info", bit(Dialect::kTandem), kNo},
      {"GET", "/tandem/v1/tokenizer", bit(Dialect::kTandem), kNo},
      {"GET", "/live", bit(Dialect::kTandem), kNo},
  }};
  return kRoutes;
}

net::asio::awaitable<void> MockServer::handle(net::HttpRequest& request,
                                              net::HttpResponder& responder) {
  const auto self = shared_from_this();
  if (options_.dialect == Dialect::kTandem && !options_.secret.empty() &&
      !request.path.starts_with("/mock/") &&
      request.headers.get("x-tandem-auth") != options_.secret) {
    (void)co_await responder.send(401, json_headers(),
                                  R"({"error":{"message":"who are you?","code":"unauthorized"}})");
    co_return;
  }
  for (const Route& route : routes()) {
    if (route.method != request.method || route.path != request.path ||
        (route.dialects & bit(options_.dialect)) == 0)
      continue;
    if (route.api >= 0)
      co_return co_await generate(static_cast<Api>(route.api), request, responder);
    co_return co_await simple_route(request.path, request, responder);
  }
  (void)co_await responder.send(404, json_headers(), R"({"detail":"Not Found"})");
}

net::asio::awaitable<void> MockServer::simple_route(const std::string& what,
                                                    net::HttpRequest& request,
                                                    net::HttpResponder& responder) {
  int status = 200;
  JsonValue json = JsonValue::object();
  if (what.starts_with("/health") && faults_.happens(FaultKind::kMuteHealth))
    co_return co_await until_gone(nullptr, responder);
  if (what == "/v1/models") {
    JsonValue model = JsonValue::object();
    model.set("id", JsonValue::string(options_.model));
    model.set("object", JsonValue::string("model"));
    model.set("created", JsonValue::integer(1700000000));
    model.set("owned_by", JsonValue::string("mock"));
    model.set("max_model_len", JsonValue::integer(1 << 20));
    json.set("object", JsonValue::string("list"));
    json.set("data", JsonValue::array({std::move(model)}));
  } else if (what == "/metrics") {
    (void)co_await responder.send(200, {{"Content-Type", "text/plain; version=0.0.4"}},
                                  metrics_text());
    co_return;
  } else if (what == "/mock/state") {
    json = state();
  } else if (what == "/mock/requests") {
    json.set("requests", JsonValue::array({recorded_.begin(), recorded_.end()}));
  } else if (what == "/v1/messages/count_tokens") {
    const auto read = read_request(Api::kMessages, request.body, options_.byte_tokens);
    if (!read) co_return co_await send_error(responder, read.error());
    json.set("input_tokens", JsonValue::integer(read->prompt_tokens()));
  } else if (what == "/mock/restart") {
    restart();
    json = state();
  } else if (what == "/mock/faults") {
    const auto body = parse_json(request.body);
    const JsonValue* const list = body ? body->find("faults") : nullptr;
    std::vector<Fault> faults;
    Error wrong{400, "invalid_request", "\"faults\" is not a list"};
    bool good = list != nullptr && list->is_array();
    for (const JsonValue& text : good ? list->items() : JsonValue::Array()) {
      const auto fault = parse_fault(text.as_string());
      if (fault) {
        faults.push_back(*fault);
      } else {
        good = false;
        wrong = fault.error();
      }
    }
    if (good) faults_.set(std::move(faults));
    if (!good) {
      status = 400;
      json.set("error", JsonValue::string(wrong.message));
    }
  } else if (what.ends_with("server_info")) {
    json = server_info();
  } else if (what.ends_with("model_info")) {
    json.set("model_path", JsonValue::string(options_.model));
    json.set("tokenizer_path", JsonValue::string(options_.model));
    json.set("is_generation", JsonValue::boolean(true));
  } else if (what == "/v1/loads" || what == "/get_load") {
    json = loads();
  } else if (what == "/flush_cache" || what == "/reset_prefix_cache") {
    for (const auto& engine : engines_) engine->cache().clear();
  } else if (what == "/abort_request") {
    record(request);
    if (const auto wish = parse_json(request.body)) abort_requests(*wish);
  } else if (what == "/version") {
    json.set("version", JsonValue::string("0.0.0-mock"));
  } else if (what == "/load") {
    json.set("server_load", JsonValue::integer(static_cast<int64_t>(running_.size())));
  } else if (what == "/tandem/v1/info") {
    json = tandem_info();
  } else if (what == "/tandem/v1/tokenizer") {
    json = text::tokenizer_spec_to_json(text::byte_tokenizer_spec());
  }
  (void)co_await responder.send(status, json_headers(), json.dump());
}

// SGLang compares by prefix: "a" aborts "ab" too.
void MockServer::abort_requests(const JsonValue& wish) {
  const JsonValue* const all = wish.find("abort_all");
  const JsonValue* const rid = wish.find("rid");
  const std::string prefix = rid == nullptr ? "" : rid->as_string();
  const bool everything = all != nullptr && all->as_bool();
  if (prefix.empty() && !everything) return;
  for (const auto& [id, run] : running_) {
    if (everything || id.starts_with(prefix)) cancel_run(*run);
  }
}

JsonValue MockServer::loads() const {
  JsonValue all = JsonValue::array();
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    EngineModel& engine = *engines_[rank];
    int64_t requests = 0;
    for (const auto& [id, run] : running_) requests += rank_of(*run) == rank ? 1 : 0;
    JsonValue load = JsonValue::object();
    load.set("dp_rank", JsonValue::integer(static_cast<int64_t>(rank)));
    load.set("num_reqs", JsonValue::integer(requests));
    load.set("num_waiting_reqs", JsonValue::integer(static_cast<int64_t>(engine.waiting())));
    load.set("num_tokens", JsonValue::integer(static_cast<int64_t>(engine.cache().blocks()) * 16));
    all.push_back(std::move(load));
  }
  return all;
}

std::string MockServer::metrics_text() const {
  const std::string prefix = options_.dialect == Dialect::kSglang ? "sglang_" : "vllm:";
  size_t waiting = 0;
  for (const auto& engine : engines_) waiting += engine->waiting();
  const auto line = [&](const char* name, size_t value) {
    return prefix + name + "{model_name=\"" + options_.model + "\"} " + std::to_string(value) +
           "\n";
  };
  return line("num_requests_running", running_.size()) + line("num_requests_waiting", waiting) +
         line("kv_cache_usage_perc", rooms_->counts().open > 0 ? 1 : 0);
}

JsonValue MockServer::server_info() const {
  JsonValue info = JsonValue::object();
  info.set("model_path", JsonValue::string(options_.model));
  info.set("served_model_name", JsonValue::string(options_.model));
  info.set("disaggregation_mode", JsonValue::string(options_.role == Role::kUnified
                                                        ? "null"
                                                        : std::string(role_name(options_.role))));
  info.set("disaggregation_bootstrap_port", JsonValue::integer(me_.bootstrap_port));
  info.set("dp_size", JsonValue::integer(options_.dp_size));
  info.set("tp_size", JsonValue::integer(1));
  info.set("version", JsonValue::string("0.0.0-mock"));
  if (!voices_.empty() && options_.dialect == Dialect::kSglang) {
    const std::string& endpoint = voices_[0]->endpoint();
    const size_t colon = endpoint.rfind(':');
    JsonValue events = JsonValue::object();
    events.set("publisher", JsonValue::string("zmq"));
    events.set("endpoint_host", JsonValue::string(endpoint.substr(6, colon - 6)));
    events.set("endpoint_port_base", JsonValue::integer(std::atoi(endpoint.c_str() + colon + 1)));
    events.set("block_size", JsonValue::integer(BlockCache::kBlockTokens));
    events.set("dp_size", JsonValue::integer(options_.dp_size));
    info.set("kv_events", std::move(events));
    JsonValue config = JsonValue::object();
    config.set("publisher", JsonValue::string("zmq"));
    config.set("endpoint", JsonValue::string(endpoint));
    config.set("replay_endpoint", JsonValue::string(voices_[0]->replay_endpoint()));
    config.set("topic", JsonValue::string("kv-events"));
    info.set("kv_events_config", JsonValue::string(config.dump()));
  }
  if (options_.dialect ==
      Dialect::kTrtllm) {  // what generation first needs to know of a context server
    JsonValue params = JsonValue::object();
    params.set("ctx_dp_rank", JsonValue::integer(0));
    params.set("ctx_info_endpoint",
               JsonValue::array({JsonValue::string(me_.bootstrap_host + ":" +
                                                   std::to_string(me_.bootstrap_port))}));
    info.set("disaggregated_params", std::move(params));
  }
  return info;
}

JsonValue MockServer::tandem_info() const {
  JsonValue model = JsonValue::object();
  model.set("id", JsonValue::string(options_.model));
  model.set("context_length", JsonValue::integer(1 << 20));
  model.set("adapters", JsonValue::array());
  model.set("lineage", JsonValue::string("mock"));
  JsonValue info = JsonValue::object();
  info.set("version", JsonValue::integer(1));
  info.set("role", JsonValue::string(std::string(role_name(options_.role))));
  info.set("epoch", JsonValue::string(me_.engine_id));
  info.set("model", std::move(model));
  info.set("block_tokens", JsonValue::integer(16));
  info.set("handoff_address", JsonValue::string("mock:" + me_.bootstrap_host + ":" +
                                                std::to_string(me_.bootstrap_port)));
  info.set("token_capacity", JsonValue::integer(static_cast<int64_t>(options_.cache_tokens)));
  if (!voices_.empty()) {
    JsonValue events = JsonValue::object();
    events.set("endpoint", JsonValue::string(voices_[0]->endpoint()));
    events.set("replay_endpoint", JsonValue::string(voices_[0]->replay_endpoint()));
    info.set("kv_events", std::move(events));
  }
  return info;
}

// Where decode servers come: the side channel of a prefill server.
net::asio::awaitable<void> MockServer::handle_bootstrap(net::HttpRequest& request,
                                                        net::HttpResponder& responder) {
  const auto self = shared_from_this();
  const auto rooms = rooms_;
  JsonValue json = JsonValue::object();
  if (request.path == "/query") {  // Mooncake: which engine is behind each rank
    for (int32_t rank = 0; rank < options_.dp_size; ++rank) {
      JsonValue one = JsonValue::object();
      one.set("engine_id", JsonValue::string(identity(rank).engine_id));
      json.set(std::to_string(rank), std::move(one));
    }
    (void)co_await responder.send(200, json_headers(), json.dump());
    co_return;
  }
  const auto wish = parse_json(request.body);
  if (request.path != "/mock/take" || !wish) {
    (void)co_await responder.send(404, json_headers(), "{}");
    co_return;
  }
  const auto field = [&](const char* name) {
    const JsonValue* const found = wish->find(name);
    return found == nullptr ? std::string() : found->as_string();
  };
  const auto told = static_cast<int32_t>(std::strtol(field("rank").c_str(), nullptr, 10));
  int32_t rank = told == Handoff::kRankOfRoom ? rank_of_room(field("id"), options_.dp_size) : told;
  const std::string engine = field("engine_id");
  bool lives_here = engine.empty();
  for (int32_t each = 0; each < options_.dp_size && !lives_here; ++each) {
    lives_here = engine == identity(each).engine_id;
    if (lives_here) rank = each;
  }
  if (!lives_here) {
    json.set("error", JsonValue::string("another engine lives here now"));
    (void)co_await responder.send(410, json_headers(), json.dump());
    co_return;
  }
  const auto gone = std::make_shared<bool>(false);
  responder.on_disconnect([gone, rooms] {
    *gone = true;
    rooms->wake();
  });
  const auto facts = co_await rooms->take(
      field("id"), std::chrono::steady_clock::now() + options_.partner_timeout, rank, gone);
  if (!facts) {
    json.set("error", JsonValue::string(facts.error().message));
    (void)co_await responder.send(facts.error().status, json_headers(), json.dump());
    co_return;
  }
  json.set("hash", JsonValue::string(std::to_string(facts->hash)));
  json.set("tokens", JsonValue::string(std::to_string(facts->tokens)));
  json.set("cached", JsonValue::string(std::to_string(facts->cached)));
  (void)co_await responder.send(200, json_headers(), json.dump());
}

}  // namespace tandem::mock
