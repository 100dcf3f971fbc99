#include "router/admin_routes.h"

#include <charconv>
#include <utility>

#include "base/reply_text.h"
#include "router/fleet_file.h"

namespace tandem::router {

namespace {

using net::asio::awaitable;
using State = WorkerRegistry::State;

// Coroutines begin late: they own what they use.
awaitable<int> answer(net::HttpResponder& responder, int status, net::Headers headers,
                      std::string body) {
  co_await responder.send(status, std::move(headers), std::move(body));
  co_return status;
}

awaitable<int> answer(net::HttpResponder& responder, int status, const JsonValue& body) {
  return answer(responder, status, {{"Content-Type", "application/json"}}, body.dump());
}

awaitable<int> answer_error(net::HttpResponder& responder, const Error& error) {
  return answer(responder, error.status, net::error_headers(error), error_body(error));
}

JsonValue show(const RouterCore& core, WorkerId id) {
  const WorkerRegistry& registry = core.registry;
  const WorkerAddress& address = registry.address(id);
  const Load& load = core.ledger.of(id);
  JsonValue json = JsonValue::object();
  const auto text = [&](const char* key, std::string value) {
    json.set(key, JsonValue::string(std::move(value)));
  };
  const auto number = [&](const char* key, int64_t value) {
    json.set(key, JsonValue::integer(value));
  };
  number("id", id);
  text("url", address.url);
  text("role", role_name(address.role));
  text("connector", address.connector);
  text("group", address.group);
  text("state", state_name(registry.state(id)));
  json.set("draining", JsonValue::boolean(registry.draining(id)));
  json.set("breaker_open", JsonValue::boolean(registry.breaker_open(id)));
  JsonValue models = JsonValue::array();
  for (const ModelList::Pointer& model : registry.models()->all()) {
    if (registry.serves(id, *model)) models.push_back(JsonValue::string(model->id));
  }
  json.set("models", std::move(models));
  text("epoch", registry.info(id).epoch);
  number("dp_size", registry.engine(id).dp_size);
  number("legs", load.running);
  number("queued_tokens", load.queued_tokens);
  number("held_tokens", load.held_tokens);
  number("others_requests", registry.others_requests(id));
  return json;
}

// The number in /router/workers/7 or /router/workers/7/drain.
Result<WorkerId> worker_of(const RouterCore& core, std::string_view path) {
  path.remove_prefix(std::min(path.size(), kWorkersPath.size() + 1));
  path = path.substr(0, path.find('/'));
  WorkerId id = 0;
  const auto read = std::from_chars(path.data(), path.data() + path.size(), id);
  if (path.empty() || read.ec != std::errc() || read.ptr != path.data() + path.size() ||
      id >= core.registry.size() || core.registry.state(id) == State::kRemoved)
    return make_error(404, "no_such_worker", "there is no such worker; GET /router/workers");
  return id;
}

}  // namespace

std::string_view worker_route(std::string_view path) {
  if (!path.starts_with(kWorkersPath) || path.size() <= kWorkersPath.size() + 1 ||
      path[kWorkersPath.size()] != '/')
    return path;
  if (path.ends_with("/drain")) return "/router/workers/{id}/drain";
  if (path.ends_with("/undrain")) return "/router/workers/{id}/undrain";
  return "/router/workers/{id}";
}

// Coroutines must own what they use.
// NOLINTBEGIN(performance-unnecessary-value-param)
awaitable<int> list_workers(std::shared_ptr<RouterCore> core, net::HttpRequest&,
                            IdentifiedResponder& responder) {
  JsonValue all = JsonValue::array();
  for (WorkerId id = 0; id < core->registry.size(); ++id) {
    if (core->registry.state(id) != State::kRemoved) all.push_back(show(*core, id));
  }
  return answer(responder, 200, JsonValue::object({{"workers", std::move(all)}}));
}

awaitable<int> add_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                          IdentifiedResponder& responder) {
  const Result<JsonValue> json = parse_json(request.body);
  if (!json) return answer_error(responder, json.error());
  const Result<ListedWorker> worker = read_worker(*json, core->options.listed_worker, "");
  if (!worker) return answer_error(responder, worker.error());
  Result<WorkerId> id = core->registry.add(worker->address);
  if (!id) return answer_error(responder, id.error());
  if (!worker->ready) core->registry.drain(*id, true);
  return answer(responder, 201, show(*core, *id));
}

awaitable<int> drain_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                            IdentifiedResponder& responder) {
  Result<WorkerId> id = worker_of(*core, request.path);
  if (!id) return answer_error(responder, id.error());
  core->registry.drain(*id, true);
  return answer(responder, 200, show(*core, *id));
}

awaitable<int> undrain_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                              IdentifiedResponder& responder) {
  Result<WorkerId> id = worker_of(*core, request.path);
  if (!id) return answer_error(responder, id.error());
  core->registry.drain(*id, false);
  return answer(responder, 200, show(*core, *id));
}

awaitable<int> remove_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                             IdentifiedResponder& responder) {
  Result<WorkerId> id = worker_of(*core, request.path);
  if (!id) return answer_error(responder, id.error());
  core->registry.remove(*id);
  return answer(responder, 200, show(*core, *id));
}
// NOLINTEND(performance-unnecessary-value-param)

}  // namespace tandem::router
