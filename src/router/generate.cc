#include "router/generate.h"

#include <utility>

#include "observe/log.h"
#include "router/error_form.h"
#include "router/request_run.h"
#include "router/response_routes.h"

namespace tandem::router {

namespace {

using net::asio::awaitable;

// Facts of a body up to this are read where it arrived: sooner done than handed over.
constexpr size_t kInlineFacts = 1UL << 20;

Error draining_error() { return {503, "draining", "the router is shutting down"}; }

// DESIGN §5: the first that is present; the body's hints come after.
std::string affinity_of(const net::HttpRequest& request) {
  for (const char* const name : {"x-session-affinity", "thread-id"}) {
    if (const std::string_view value = request.headers.get(name); !value.empty())
      return std::string(value);
  }
  // An agent's helpers share its session, not its prompt.
  if (const std::string_view session = request.headers.get("x-claude-code-session-id");
      !session.empty())
    return std::string(session) + "/" + std::string(request.headers.get("x-claude-code-agent-id"));
  return std::string(request.headers.get("x-session-id"));
}

net::WorkPool::Weight weight_of(const std::string& body) {
  return body.size() > net::kHeavyBody ? net::WorkPool::Weight::kHeavy
                                       : net::WorkPool::Weight::kLight;
}

awaitable<Result<CheckedRequest>> check_tandem(RouterCore& core, GenerateRoute route,
                                               std::shared_ptr<const std::string> body,
                                               std::shared_ptr<const ModelList> models,
                                               uint64_t tenant) {
  if (!route.endpoint) {
    co_return make_error(501, "not_supported",
                         "this API is not spoken for the model's workers; use "
                         "/v1/chat/completions or /v1/completions");
  }
  auto work = [route, body, models = std::move(models), hasher = core.holders.hasher(), &core,
               tenant]() {
    return check_tandem_request(route, body, *models, hasher, core.responses, tenant);
  };
  if (body->size() <= net::kInlineBody) co_return work();
  co_return co_await net::run_on<CheckedRequest>(
      core.pool, core.reactor, std::move(work), weight_of(*body), core.options.preparation_timeout);
}

// Where other engines are served, the facts of a body say whose it is.
awaitable<Result<CheckedRequest>> check_body(RouterCore& core, GenerateRoute route,
                                             std::shared_ptr<const std::string> body,
                                             uint64_t tenant) {
  const std::shared_ptr<const ModelList> models = core.registry.models();
  if (!core.registry.any_engine())
    co_return co_await check_tandem(core, route, body, models, tenant);
  auto look = [api = route.api, body]() { return read_facts(api, *body); };
  Result<BodyFacts> facts = internal_error("");
  if (body->size() <= kInlineFacts) {
    facts = look();
  } else {
    facts = co_await net::run_on<BodyFacts>(core.pool, core.reactor, std::move(look),
                                            weight_of(*body), core.options.preparation_timeout);
  }
  if (!facts) co_return tl::unexpected(facts.error());
  Result<ModelList::Pointer> model =
      models->choose(facts->model.empty() ? "default" : facts->model);
  if (!model) co_return tl::unexpected(model.error());
  if (!(*model)->opaque()) co_return co_await check_tandem(core, route, body, models, tenant);
  PrefixRule rule = core.prefix_rule(**model);
  // Only where events tell of tokens is the prompt worth reading.
  const bool here = rule.block_tokens.empty() || body->size() <= net::kInlineBody;
  const auto weight = weight_of(*body);
  auto work = [route, body = std::move(body), facts = std::move(*facts), model = std::move(*model),
               rule = std::move(rule)]() mutable -> Result<CheckedRequest> {
    return check_opaque_request(route, std::move(body), std::move(facts), std::move(model), rule);
  };
  if (here) co_return work();
  co_return co_await net::run_on<CheckedRequest>(core.pool, core.reactor, std::move(work), weight,
                                                 core.options.preparation_timeout);
}

auto admit(RouterCore& core, const net::HttpRequest& request, net::HttpResponder& responder,
           const CheckedRequest& checked) {
  const ServedModel& model = *checked.model;
  AdmissionRequest asked;
  asked.tenant = checked.tenant;
  asked.priority = parse_priority(request.headers.get("x-request-priority"));
  asked.tokens = checked.prompt_tokens +
                 core.outputs.expect(checked.tenant, stable_hash(model.id), checked.max_tokens);
  asked.bytes = checked.body ? checked.body->size() : 0;
  asked.deadline = start_deadline(request.headers, std::chrono::steady_clock::now());
  return core.gate.enter(model.id, asked, core.registry.answering(model), responder);
}

awaitable<Result<CheckedRequest>> check(std::shared_ptr<RouterCore> core, GenerateRoute route,
                                        net::HttpRequest& request) {
  if (core->draining) co_return tl::unexpected(draining_error());
  auto body = std::make_shared<const std::string>(std::move(request.body));
  request.body = std::string();
  Result<CheckedRequest> checked =
      co_await check_body(*core, route, std::move(body), tenant_of(request.headers));
  if (!checked) co_return checked;
  checked->report = request.headers.get("x-tandem-report") == "1" && checked->tandem;
  if (std::string key = affinity_of(request); !key.empty()) checked->affinity_key = std::move(key);
  checked->traceparent = traceparent_of(request.headers);
  checked->tenant = tenant_of(request.headers);
  co_return checked;
}

// key=value words: what was asked, how it went, never content.
void log_access(const RouterCore& core, const net::HttpRequest& request,
                const std::string& request_id, const RequestRun& run, double seconds) {
  if (!core.options.access_log) return;
  const RequestRun::Summary& done = run.summary();
  const auto name = [&](WorkerId worker) -> std::string {
    return worker == kNoWorker ? "-" : core.registry.url_text(worker);
  };
  observe::log_info(
      "{} {} {} {:.3f}s first={:.3f}s prompt={} cached={} completion={} expected={} prefill={} "
      "answer={} prefill_status={} answer_status={} prefill_s={:.3f} retries={} connector={} "
      "error={} id={}",
      request.method, request.path.substr(0, 100), done.status, seconds, done.first_byte_seconds,
      done.prompt_tokens, done.cached_tokens, done.completion_tokens, done.expected_cached,
      name(done.prefill), name(done.answer), done.prefill_status, done.answer_status,
      done.prefill_seconds, done.retries, run.model().connector->name,
      done.error.empty() ? "-" : done.error, request_id);
}

// The error's sentence may repeat the client's text; its code never does.
void log_refusal(const RouterCore& core, const net::HttpRequest& request,
                 const std::string& request_id, const Error& error) {
  if (!core.options.access_log) return;
  observe::log_info("{} {} {} refused={} id={}", request.method, request.path.substr(0, 100),
                    error.status, error.code, request_id);
}

}  // namespace

awaitable<int> generate(std::shared_ptr<RouterCore> core, GenerateRoute route,
                        net::HttpRequest& request, IdentifiedResponder& responder) {
  const TimePoint begin = std::chrono::steady_clock::now();
  const std::string& request_id = responder.id();
  Result<CheckedRequest> checked = co_await check(core, route, request);
  if (!checked) {
    log_refusal(*core, request, request_id, checked.error());
    net::HttpRefusal refused = refusal_for(request, checked.error());
    const int status = refused.status;
    co_await responder.send(status, std::move(refused.headers), std::move(refused.body));
    co_return status;
  }
  checked->request_id = request_id;
  AdmissionGate::Permit permit;
  if (core->gate.limited()) {
    auto entered = co_await admit(*core, request, responder, *checked);
    if (!entered) {
      const AdmissionRefusal& why = entered.error();
      log_refusal(*core, request, request_id, why.error);
      net::HttpRefusal refused = refusal_for(request, why.error);
      const int status = refused.status;
      if (status == 429) refused.headers.set("Retry-After", std::to_string(why.retry_after));
      co_await responder.send(status, std::move(refused.headers), std::move(refused.body));
      co_return status;
    }
    permit = std::move(*entered);
  }
  const auto run = std::make_shared<RequestRun>(core, request, responder, std::move(*checked));
  core->metrics.of_model(run->model().id).requests.add();
  core->metrics.running.add(1);
  co_await run->serve();
  core->metrics.running.add(-1);
  log_access(*core, request, request_id, *run,
             to_seconds(std::chrono::steady_clock::now() - begin));
  co_return run->summary().status;
}

}  // namespace tandem::router
