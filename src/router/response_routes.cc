#include "router/response_routes.h"

#include <utility>

#include "base/reply_text.h"
#include "router/connectors/facts.h"
#include "router/error_form.h"
#include "router/generate.h"

namespace tandem::router {

namespace {

using net::asio::awaitable;

awaitable<int> answer_json(IdentifiedResponder& responder, int status, std::string body) {
  co_await responder.send(status, {{"Content-Type", "application/json"}}, std::move(body));
  co_return status;
}

awaitable<int> answer_error(const net::HttpRequest& request, IdentifiedResponder& responder,
                            Error error) {
  net::HttpRefusal refused = refusal_for(request, error);
  const int status = refused.status;
  co_await responder.send(status, std::move(refused.headers), std::move(refused.body));
  co_return status;
}

std::string id_of(const std::string& path) {
  const std::string rest = path.substr(kResponsesPath.size() + 1);
  return rest.substr(0, rest.find('/'));
}

Result<std::string> count(api::Endpoint endpoint, const ModelList& models,
                          api::ResponseStore& store, uint64_t tenant, const std::string& text) {
  TANDEM_TRY(body, parse_json(text));
  TANDEM_TRY(earlier, earlier_items(store, body, tenant));
  const JsonValue items = earlier.empty() ? JsonValue() : *parse_json(earlier);
  TANDEM_TRY(parsed, api::parse_request(endpoint, body, false, earlier.empty() ? nullptr : &items));
  TANDEM_TRY(model, models.choose(parsed.model));
  TANDEM_TRY(prompts, api::render_prompts(parsed, *model->tokenizer, model->chat_template.get()));
  return api::count_body(endpoint, static_cast<int64_t>(prompts[0].size()));
}

}  // namespace

uint64_t tenant_of(const net::Headers& headers) {
  std::string_view key = headers.get("authorization");
  if (key.empty()) key = headers.get("x-api-key");
  return key.empty() ? 0 : stable_hash(key);
}

std::string_view response_route(std::string_view path) {
  const bool below = path.starts_with(kResponsesPath) && path.size() > kResponsesPath.size() + 1 &&
                     path[kResponsesPath.size()] == '/';
  if (!below || path == "/v1/responses/input_tokens") return path;
  return path.ends_with("/input_items") ? "/v1/responses/{id}/input_items" : "/v1/responses/{id}";
}

// Coroutines must own what they use.
// NOLINTBEGIN(performance-unnecessary-value-param)
awaitable<int> count_tokens(std::shared_ptr<RouterCore> core, api::Endpoint endpoint,
                            net::HttpRequest& request, IdentifiedResponder& responder) {
  const std::shared_ptr<const ModelList> models = core->registry.models();
  if (core->registry.any_engine()) {
    const Api api = endpoint == api::Endpoint::kCountTokens ? Api::kMessages : Api::kResponses;
    const auto facts = read_facts(api, request.body);
    if (!facts) co_return co_await answer_error(request, responder, facts.error());
    const auto model = models->choose(facts->model.empty() ? "default" : facts->model);
    if (!model) co_return co_await answer_error(request, responder, model.error());
    if ((*model)->opaque())
      co_return co_await generate(std::move(core), {Api::kOther, {}}, request, responder);
  }
  auto body = co_await net::run_on_body<std::string>(
      core->pool, core->reactor, request.body,
      [endpoint, models, core, tenant = tenant_of(request.headers)](const std::string& text) {
        return count(endpoint, *models, core->responses, tenant, text);
      },
      core->options.preparation_timeout);
  if (!body) co_return co_await answer_error(request, responder, body.error());
  co_return co_await answer_json(responder, 200, std::move(*body));
}

awaitable<int> get_response(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                            IdentifiedResponder& responder) {
  const std::string id = id_of(request.path);
  const auto found = core->responses.find(id, tenant_of(request.headers));
  if (!found) return answer_error(request, responder, api::response_not_found(id));
  return answer_json(responder, 200, found->response);
}

awaitable<int> delete_response(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                               IdentifiedResponder& responder) {
  const std::string id = id_of(request.path);
  if (!core->responses.erase(id, tenant_of(request.headers)))
    return answer_error(request, responder, api::response_not_found(id));
  JsonValue out = JsonValue::object({{"id", JsonValue::string(id)}});
  out.set("object", JsonValue::string("response"));
  out.set("deleted", JsonValue::boolean(true));
  return answer_json(responder, 200, out.dump());
}

awaitable<int> list_input_items(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                IdentifiedResponder& responder) {
  const std::string id = id_of(request.path);
  const auto found = core->responses.find(id, tenant_of(request.headers));
  if (!found) return answer_error(request, responder, api::response_not_found(id));
  return answer_json(responder, 200,
                     R"({"object":"list","data":)" + found->input +
                         R"(,"first_id":null,"last_id":null,"has_more":false})");
}

awaitable<int> no_websocket(std::shared_ptr<RouterCore>, net::HttpRequest& request,
                            IdentifiedResponder& responder) {
  return answer_error(request, responder,
                      {426, "upgrade_required",
                       "send the request with POST; answers are streamed as "
                       "server-sent events"});
}
// NOLINTEND(performance-unnecessary-value-param)

Result<std::string> earlier_items(api::ResponseStore& store, const JsonValue& body,
                                  uint64_t tenant) {
  const JsonValue* id = body.find("previous_response_id");
  if (id == nullptr || !id->is_string() || id->as_string().empty()) return std::string();
  if (const auto found = store.find(id->as_string(), tenant)) return found->items;
  Error error = api::response_not_found(id->as_string());
  error.status = 400;  // nothing that a repetition would change
  error.code = "previous_response_not_found";
  error.pointer = "/previous_response_id";
  return tl::unexpected(std::move(error));
}

void keep_response(api::ResponseStore& store, uint64_t tenant, const std::string& conversation,
                   const std::string& input, const JsonValue& reply) {
  const JsonValue* id = reply.find("id");
  const JsonValue* output = reply.find("output");
  if (id == nullptr || output == nullptr) return;
  // Two arrays as one, as text: a long conversation need not be read again.
  std::string items = conversation;
  const std::string more = output->dump();
  if (more.size() > 2) {
    items.pop_back();
    if (items.size() > 1) items += ',';
    items += std::string_view(more).substr(1);
  }
  store.put(id->as_string(), tenant, {reply.dump(), input, std::move(items)});
}

}  // namespace tandem::router
