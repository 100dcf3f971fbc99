#include "router/router.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "api/ollama.h"
#include "api/openai.h"
#include "api/openapi.h"
#include "base/reply_text.h"
#include "observe/log.h"
#include "router/admin_routes.h"
#include "router/error_form.h"
#include "router/fleet_watch.h"
#include "router/generate.h"
#include "router/ollama_routes.h"
#include "router/request_id.h"
#include "router/request_run.h"
#include "router/response_routes.h"
#include "router/router_core.h"

namespace tandem::router {

namespace {

using net::asio::awaitable;

net::Headers json_headers() { return {{"Content-Type", "application/json"}}; }

awaitable<int> answer(net::HttpResponder& responder, int status, std::string body,
                      net::Headers headers = json_headers()) {
  co_await responder.send(status, std::move(headers), std::move(body));
  co_return status;
}

awaitable<int> answer_error(net::HttpResponder& responder, const Error& error) {
  return answer(responder, error.status, error_body(error), net::error_headers(error));
}

// Takes as long for a wrong key as for the right one, wherever they differ.
bool same_secret(std::string_view given, std::string_view known) {
  unsigned difference = given.size() == known.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(known[i % known.size()]);
  }
  return difference == 0;
}

bool has_key(const net::HttpRequest& request, const std::vector<std::string>& keys) {
  std::string_view given = request.headers.get("authorization");
  if (given.size() > 7 && net::equal_ignoring_case(given.substr(0, 7), "bearer ")) {
    given.remove_prefix(7);
  } else {
    given = request.headers.get("x-api-key");
  }
  bool found = false;
  for (const std::string& key : keys) found |= !key.empty() && same_secret(given, key);
  return found;
}

Error not_ready_error() {
  return {503, "no_workers", "no worker is ready to take the request; retry in a moment"};
}

Error draining_error() { return {503, "draining", "the router is shutting down"}; }

// Only Tandem's own workers give their tokenizer.
Result<ModelList::Pointer> tandem_model(const ModelList& models, const std::string& name) {
  TANDEM_TRY(model, models.choose(name));
  if (model->opaque()) {
    return make_error(501, "not_supported",
                      "the router does not know the tokenizer of '" + model->id + "'", "/model");
  }
  return model;
}

Result<std::string> tokenize(const ModelList& models, const std::string& text) {
  TANDEM_TRY(body, parse_json(text));
  TANDEM_TRY(parsed, api::parse_request(api::Endpoint::kTokenize, body));
  TANDEM_TRY(model, tandem_model(models, parsed.model));
  TANDEM_TRY(tokens, api::tokenize(parsed, *model->tokenizer, model->chat_template.get()));
  return api::tokenize_body(tokens, model->context_length);
}

Result<std::string> detokenize(const ModelList& models, const std::string& text) {
  TANDEM_TRY(body, parse_json(text));
  TANDEM_TRY(parsed, api::parse_request(api::Endpoint::kDetokenize, body));
  TANDEM_TRY(model, tandem_model(models, parsed.model));
  TANDEM_TRY(decoded, api::detokenize(parsed, *model->tokenizer));
  return api::detokenize_body(decoded);
}

using CorePointer = std::shared_ptr<RouterCore>;

struct Route : net::RouteHead {
  awaitable<int> (*handle)(CorePointer, net::HttpRequest&, IdentifiedResponder&);
  bool admin = false;  // changes the fleet
};

// Every row of the table has one type, and coroutines must own what they use.
// NOLINTBEGIN(performance-unnecessary-value-param)
template <Api kApi>
awaitable<int> generate_route(CorePointer core, net::HttpRequest& request,
                              IdentifiedResponder& responder) {
  GenerateRoute route{kApi, {}};
  if (kApi == Api::kChat) route.endpoint = api::Endpoint::kChatCompletions;
  if (kApi == Api::kCompletions) route.endpoint = api::Endpoint::kCompletions;
  if (kApi == Api::kResponses) route.endpoint = api::Endpoint::kResponses;
  if (kApi == Api::kMessages) route.endpoint = api::Endpoint::kMessages;
  return generate(std::move(core), route, request, responder);
}

template <api::Endpoint kEndpoint>
awaitable<int> count_route(CorePointer core, net::HttpRequest& request,
                           IdentifiedResponder& responder) {
  return count_tokens(std::move(core), kEndpoint, request, responder);
}

awaitable<int> embeddings_route(CorePointer core, net::HttpRequest& request,
                                IdentifiedResponder& responder) {
  return generate(std::move(core), {Api::kOther, api::Endpoint::kEmbeddings}, request, responder);
}

template <api::OllamaRoute kRoute>
awaitable<int> ollama(CorePointer core, net::HttpRequest& request, IdentifiedResponder& responder) {
  return ollama_route(
      std::move(core), kRoute, request, responder,
      {generate_route<Api::kChat>, generate_route<Api::kCompletions>, embeddings_route});
}

std::vector<api::ModelEntry> model_entries(const RouterCore& core) {
  std::vector<api::ModelEntry> entries;
  for (const auto& model : core.registry.models()->all()) {
    entries.push_back({model->id, model->context_length, ""});
    for (const std::string& adapter : model->adapters)
      entries.push_back({adapter, model->context_length, model->id});
  }
  return entries;
}

awaitable<int> models_route(CorePointer core, net::HttpRequest&, IdentifiedResponder& responder) {
  return answer(responder, 200, api::models_body(model_entries(*core), core->created));
}

constexpr std::string_view kModelPath = "/v1/models/";

// Clients escape the slash in ORG/NAME; what is no escape stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr ==
                            text.data() + i + 3;
    out += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return out;
}

awaitable<int> model_route(CorePointer core, net::HttpRequest& request,
                           IdentifiedResponder& responder) {
  const std::string id = percent_decoded(std::string_view(request.path).substr(kModelPath.size()));
  for (const api::ModelEntry& entry : model_entries(*core)) {
    if (entry.id == id) return answer(responder, 200, api::model_body(entry, core->created));
  }
  return answer_error(responder, api::model_not_found(id));
}

awaitable<int> ollama_tags_route(CorePointer core, net::HttpRequest&,
                                 IdentifiedResponder& responder) {
  std::vector<std::string> ids;
  for (const api::ModelEntry& entry : model_entries(*core)) ids.push_back(entry.id);
  return answer(responder, 200, api::ollama_tags(ids, timestamp(core->created)));
}

awaitable<int> ollama_version_route(CorePointer, net::HttpRequest&,
                                    IdentifiedResponder& responder) {
  return answer(responder, 200, api::ollama_version());
}

awaitable<int> openapi_route(CorePointer, net::HttpRequest&, IdentifiedResponder& responder) {
  static const std::string kDocument = api::openapi_document().dump();
  return answer(responder, 200, kDocument);
}

template <Result<std::string> (*Work)(const ModelList&, const std::string&)>
awaitable<int> local_route(CorePointer core, net::HttpRequest& request,
                           IdentifiedResponder& responder) {
  Result<std::string> body = co_await net::run_on_body<std::string>(
      core->pool, core->reactor, request.body,
      [models = core->registry.models()](const std::string& text) { return Work(*models, text); },
      core->options.preparation_timeout);
  if (!body) co_return co_await answer_error(responder, body.error());
  co_return co_await answer(responder, 200, std::move(*body));
}

awaitable<int> live_route(CorePointer, net::HttpRequest&, IdentifiedResponder& responder) {
  return answer(responder, 200, R"({"status":"ok"})");
}

awaitable<int> health_route(CorePointer core, net::HttpRequest&, IdentifiedResponder& responder) {
  if (!core->registry.ready()) return answer_error(responder, not_ready_error());
  return answer(responder, 200, R"({"status":"ok"})");
}

awaitable<int> ready_route(CorePointer core, net::HttpRequest&, IdentifiedResponder& responder) {
  if (core->draining) return answer_error(responder, draining_error());
  if (!core->registry.ready()) return answer_error(responder, not_ready_error());
  return answer(responder, 200, R"({"status":"ready"})");
}

awaitable<int> metrics_route(CorePointer core, net::HttpRequest&, IdentifiedResponder& responder) {
  core->metrics.sample(core->registry, core->ledger, core->holders, core->feeds,
                       core->tokenizer.get());
  core->gate.sample();
  return answer(responder, 200, core->metrics_store.render(),
                {{"Content-Type", observe::kMetricsContentType}});
}

// Agents open their connection with HEAD / and take any answer.
awaitable<int> root_route(CorePointer, net::HttpRequest&, IdentifiedResponder& responder) {
  return answer(responder, 200, R"({"name":"tandem"})");
}

// NOLINTEND(performance-unnecessary-value-param)

constexpr std::array kRoutes = {
    Route{{"POST", "/v1/chat/completions"}, generate_route<Api::kChat>},
    Route{{"POST", "/v1/completions"}, generate_route<Api::kCompletions>},
    Route{{"POST", "/v1/embeddings"}, embeddings_route},
    Route{{"POST", "/v1/responses"}, generate_route<Api::kResponses>},
    Route{{"POST", "/v1/messages"}, generate_route<Api::kMessages>},
    Route{{"POST", "/v1/messages/count_tokens"}, count_route<api::Endpoint::kCountTokens>},
    Route{{"POST", "/v1/responses/input_tokens"}, count_route<api::Endpoint::kInputTokens>},
    Route{{"GET", "/v1/responses"}, no_websocket},
    Route{{"GET", "/v1/responses/{id}"}, get_response},
    Route{{"DELETE", "/v1/responses/{id}"}, delete_response},
    Route{{"GET", "/v1/responses/{id}/input_items"}, list_input_items},
    Route{{"POST", "/generate"}, generate_route<Api::kGenerate>},
    Route{{"POST", "/inference/v1/generate"}, generate_route<Api::kInference>},
    Route{{"POST", "/v1/{any}"}, generate_route<Api::kOther>},
    Route{{"GET", "/v1/models"}, models_route},
    Route{{"GET", "/v1/models/{model}"}, model_route},
    Route{{"POST", "/tokenize"}, local_route<tokenize>},
    Route{{"POST", "/detokenize"}, local_route<detokenize>},
    Route{{"POST", "/api/chat"}, ollama<api::OllamaRoute::kChat>},
    Route{{"POST", "/api/generate"}, ollama<api::OllamaRoute::kGenerate>},
    Route{{"POST", "/api/embed"}, ollama<api::OllamaRoute::kEmbed>},
    Route{{"POST", "/api/embeddings"}, ollama<api::OllamaRoute::kEmbedding>},
    Route{{"GET", "/api/tags"}, ollama_tags_route},
    Route{{"GET", "/api/version"}, ollama_version_route},
    Route{{"GET", "/openapi.json"}, openapi_route},
    Route{{"GET", "/", true}, root_route},
    Route{{"GET", "/live", true}, live_route},
    Route{{"GET", "/health", true}, health_route},
    Route{{"GET", "/ready", true}, ready_route},
    Route{{"GET", "/metrics"}, metrics_route},
    Route{{"GET", kWorkersPath}, list_workers},
    Route{{"POST", kWorkersPath}, add_worker, true},
    Route{{"POST", "/router/workers/{id}/drain"}, drain_worker, true},
    Route{{"POST", "/router/workers/{id}/undrain"}, undrain_worker, true},
    Route{{"DELETE", "/router/workers/{id}"}, remove_worker, true},
};

net::RouteMatch<Route> match(const RouterCore& core, const net::HttpRequest& request) {
  const bool model =
      request.path.starts_with(kModelPath) && request.path.size() > kModelPath.size();
  if (model) return net::match_route(kRoutes, request.method, "/v1/models/{model}");
  auto found =
      net::match_route(kRoutes, request.method, worker_route(response_route(request.path)));
  // What other engines have besides is theirs to answer.
  if (found.allow.empty() && core.registry.any_engine() && request.path.starts_with("/v1/") &&
      request.path.find('{') == std::string::npos)
    found = net::match_route(kRoutes, request.method, "/v1/{any}");
  return found;
}

// A JSON route takes JSON. A missing Content-Type is taken for it, but not from a web page: pages
// of any origin may send bodies without a type, or as text, without asking first (CORS).
Status check_content_type(const net::HttpRequest& request) {
  const bool page = request.headers.find("origin") != nullptr;
  // Ollama's own examples send its bodies without a type.
  if (!page && request.path.starts_with("/api/")) return {};
  std::string_view type = request.headers.get("content-type");
  type = type.substr(0, type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  const bool json =
      (type.empty() && !page) || net::equal_ignoring_case(type, "application/json") ||
      (type.size() > 5 && net::equal_ignoring_case(type.substr(type.size() - 5), "+json"));
  if (json) return {};
  return make_error(400, "unsupported_content_type",
                    "send the body as 'Content-Type: application/json', not '" +
                        std::string(type.substr(0, 100)) + "'");
}

// What the head alone decides; nothing: the route may run.
std::optional<net::HttpRefusal> refusal_of(const RouterCore& core, const net::HttpRequest& request,
                                           const net::RouteMatch<Route>& found) {
  if (core.closed) return refusal_for(request, not_ready_error());
  const bool open = found.row != nullptr && found.row->open;
  const bool admin = found.row != nullptr && found.row->admin;
  const bool own_keys = admin && !core.options.admin_keys.empty();
  const std::vector<std::string>& keys = own_keys ? core.options.admin_keys : core.options.api_keys;
  if (!open && !keys.empty() && !has_key(request, keys)) {
    return refusal_for(request,
                       {401, "invalid_api_key",
                        "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"});
  }
  if (admin && keys.empty()) {
    return refusal_for(request, {403, "no_admin_key",
                                 "the fleet can be changed only with a key: start the router with "
                                 "--admin-key or --api-key"});
  }
  if (found.row == nullptr) return net::unmatched_route(request, found.allow);
  if (found.row->method == "POST") {
    if (Status json = check_content_type(request); !json) return refusal_for(request, json.error());
  }
  return std::nullopt;
}

void count(RouterCore& core, const net::RouteMatch<Route>& found, int status) {
  core.metrics.count_request(found.row != nullptr ? std::string(found.row->path) : "other", status);
}

std::optional<net::HttpRefusal> check_head(RouterCore& core, const net::HttpRequest& request,
                                           const net::RouteMatch<Route>& found) {
  auto refused = refusal_of(core, request, found);
  if (!refused) return std::nullopt;
  refused->headers.set(kRequestId, request_id_of(request.headers));
  count(core, found, refused->status);
  return refused;
}

awaitable<void> handle(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                       net::HttpResponder& plain_responder) {
  const auto found = match(*core, request);
  if (auto refused = check_head(*core, request, found)) {
    co_await plain_responder.send(refused->status, std::move(refused->headers),
                                  std::move(refused->body));
    co_return;
  }
  IdentifiedResponder responder(plain_responder, request_id_of(request.headers));
  count(*core, found, co_await found.row->handle(core, request, responder));
}

}  // namespace

Router::Router(net::Reactor& reactor, RouterOptions options)
    : core_(std::make_shared<RouterCore>(reactor, std::move(options))) {}

Router::~Router() {
  core_->closed = true;
  core_->registry.stop();
  core_->pool.stop();
}

Status Router::start() {
  if (core_->options.workers.empty() && core_->options.fleet_file.empty()) {
    return make_error(
        400, "no_workers",
        "a router needs at least one unified worker, or one prefill and one decode worker");
  }
  if (auto& spec = core_->options.tokenizer) {
    TANDEM_TRY(made, make_served_text(std::move(*spec)));
    core_->chat_template = std::move(made.chat_template);
    core_->tokenizer = std::move(made.tokenizer);
    spec.reset();
  }
  for (const WorkerAddress& address : core_->options.workers)
    TANDEM_CHECK(core_->registry.add(address));
  if (!core_->options.fleet_file.empty()) TANDEM_CHECK(follow_fleet_file(core_));
  core_->registry.start(core_);
  return {};
}

net::HttpHandler Router::handler() {
  return [core = core_](net::HttpRequest& request, net::HttpResponder& responder) {
    return handle(core, request, responder);
  };
}

net::HttpGate Router::gate() {
  return [core = core_](const net::HttpRequest& request) {
    return check_head(*core, request, match(*core, request));
  };
}

std::vector<net::RouteHead> Router::routes() { return {kRoutes.begin(), kRoutes.end()}; }

Status Router::move_worker(size_t index, const std::string& url_text) {
  TANDEM_TRY(url, net::parse_url(url_text));
  if (index >= core_->registry.size())
    return make_error(404, "no_such_worker", "there is no such worker");
  core_->registry.move(static_cast<WorkerId>(index), url_text, url);
  return {};
}

void Router::begin_drain(Duration limit) {
  core_->draining = true;
  core_->drain_limit.arm(limit);
}

bool Router::ready() const { return !core_->draining && core_->registry.ready(); }
bool Router::complete() const { return core_->registry.complete(); }
bool Router::idle() const {
  return core_->ledger.idle() && core_->runs.empty() && core_->gate.idle();
}
observe::Metrics& Router::metrics() { return core_->metrics_store; }

}  // namespace tandem::router
