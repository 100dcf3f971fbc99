#include "worker/routes.h"

#include <array>
#include <ctime>
#include <utility>

#include "base/reply_text.h"
#include "numerics/hmac.h"
#include "text/tokenizer_spec.h"

namespace tandem::worker {

namespace asio = net::asio;
using asio::awaitable;
using protocol::LegKind;

namespace {
constexpr Duration kPreparationTime = std::chrono::seconds(30);  // reading and tokenizing a body
}  // namespace

awaitable<void> send_json(net::HttpResponder& responder, int status, std::string body) {
  (void)co_await responder.send(status, {{"Content-Type", "application/json"}}, std::move(body));
}

awaitable<void> send_error(net::HttpResponder& responder, const Error& error) {
  (void)co_await responder.send(error.status, net::error_headers(error), error_body(error));
}

bool Worker::Routes::authenticated(const Request& request) const {
  return !worker.options_.secret.empty() &&
         numerics::equal_constant_time(request.headers.get("x-tandem-auth"),
                                       worker.options_.secret);
}

struct Worker::Routes::Row : net::RouteHead {
  awaitable<void> (Routes::*answer)(Request&, Responder&);
};

net::RouteMatch<Worker::Routes::Row> Worker::Routes::match(const Request& request) {
  static constexpr std::array kRows = {
      Row{{"GET", "/live", true}, &Routes::live},
      Row{{"GET", "/health", true}, &Routes::health},
      Row{{"GET", "/ready", true}, &Routes::ready},
      Row{{"GET", "/metrics"}, &Routes::metrics},
      Row{{"GET", "/tandem/v1/info"}, &Routes::info},
      Row{{"GET", "/tandem/v1/tokenizer"}, &Routes::tokenizer},
      Row{{"GET", "/v1/models"}, &Routes::models},
      Row{{"POST", "/v1/chat/completions"}, &Routes::chat},
      Row{{"POST", "/v1/completions"}, &Routes::completions},
      Row{{"POST", "/tokenize"}, &Routes::tokenize},
      Row{{"POST", "/detokenize"}, &Routes::detokenize},
  };
  return net::match_route(kRows, request.method, request.path);
}

std::optional<net::HttpRefusal> Worker::Routes::check_head(const Request& request) const {
  const auto found = match(request);
  const bool open = found.row != nullptr && found.row->open;
  if (!open && !worker.options_.secret.empty() && !authenticated(request)) {
    return net::refusal(
        {401, "unauthorized", "This worker answers its router only; send requests there."});
  }
  if (found.row == nullptr) return net::unmatched_route(request, found.allow);
  return std::nullopt;
}

awaitable<void> Worker::Routes::handle(Request& request, Responder& responder) {
  if (auto refused = check_head(request)) {
    (void)co_await responder.send(refused->status, std::move(refused->headers),
                                  std::move(refused->body));
    co_return;
  }
  co_await (this->*match(request).row->answer)(request, responder);
}

awaitable<void> Worker::Routes::live(Request&, Responder& responder) {
  co_await send_json(responder, 200, R"({"status":"ok"})");
}

awaitable<void> Worker::Routes::health(Request&, Responder& responder) {
  const bool well = !worker.engine_->stalled();
  co_await send_json(responder, well ? 200 : 503,
                     well ? R"({"status":"ok"})" : R"({"status":"stalled"})");
}

awaitable<void> Worker::Routes::ready(Request&, Responder& responder) {
  const bool ready = !worker.draining_ && !worker.engine_->stalled();
  co_await send_json(responder, ready ? 200 : 503,
                     ready ? R"({"status":"ready"})" : R"({"status":"not ready"})");
}

awaitable<void> Worker::Routes::metrics(Request&, Responder& responder) {
  (void)co_await responder.send(200, {{"Content-Type", observe::kMetricsContentType}},
                                worker.metrics_.render());
}

awaitable<void> Worker::Routes::tokenizer(Request&, Responder& responder) {
  co_await send_json(responder, 200,
                     text::tokenizer_spec_to_json(worker.served_.tokenizer->spec()).dump());
}

awaitable<void> Worker::Routes::models(Request&, Responder& responder) {
  const api::ModelEntry entries[] = {{worker.served_.name, worker.engine_->context_length(), ""}};
  co_await send_json(responder, 200, api::models_body(entries, std::time(nullptr)));
}

awaitable<void> Worker::Routes::chat(Request& request, Responder& responder) {
  return complete(api::Endpoint::kChatCompletions, request, responder);
}

awaitable<void> Worker::Routes::completions(Request& request, Responder& responder) {
  return complete(api::Endpoint::kCompletions, request, responder);
}

awaitable<void> Worker::Routes::info(Request&, Responder& responder) {
  JsonValue model = JsonValue::object();
  model.set("id", JsonValue::string(worker.served_.name));
  model.set("context_length", JsonValue::integer(worker.engine_->context_length()));
  model.set("lineage", JsonValue::string(worker.served_.lineage));
  JsonValue out = JsonValue::object();
  out.set("version", JsonValue::integer(1));
  out.set("role", JsonValue::string(std::string(role_name(worker.options_.role))));
  out.set("epoch", JsonValue::string(worker.epoch_));
  out.set("model", std::move(model));
  out.set("block_tokens", JsonValue::integer(worker.options_.block_tokens));
  out.set("handoff_address", JsonValue::string(worker.handoffs_->address()));
  out.set("pages_total", JsonValue::integer(worker.memory_.pages));
  out.set("token_capacity", JsonValue::integer(worker.engine_->token_capacity()));
  co_await send_json(responder, 200, out.dump());
}

template <typename T>
awaitable<Result<T>> Worker::Routes::off_reactor(
    Request& request, std::function<Result<T>(const std::string&)> work) {
  return net::run_on_body<T>(worker.pool_, worker.reactor_, request.body, std::move(work),
                             kPreparationTime);
}

Error Worker::Routes::out_of_time() const {
  if (worker.cutting_) return {503, "shutting_down", "This worker is shutting down."};
  return {504, "deadline_exceeded", "The request's deadline passed."};
}

Result<Worker::Routes::Prepared> Worker::Routes::prepare(api::Endpoint endpoint,
                                                         const std::string& text,
                                                         bool trusted) const {
  TANDEM_TRY(body, parse_json(text));
  TANDEM_TRY(parsed, api::parse_request(endpoint, body, trusted));
  Prepared out;
  out.asked = std::move(parsed);
  const api::ApiRequest& asked = out.asked;
  if (asked.envelope) {
    out.request.context = asked.envelope->context;
    out.request.leg = asked.envelope->leg;
    out.request.handoff = asked.envelope->handoff;
  } else if (asked.model != "default" && asked.model != worker.served_.name) {
    return make_error(404, "model_not_found",
                      "The model \"" + asked.model + "\" is not served here; \"" +
                          worker.served_.name + "\" is.");
  }
  const auto* chat_template =
      worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
  TANDEM_TRY(prompt, api::render_prompt(asked, *worker.served_.tokenizer, chat_template));
  TANDEM_CHECK(api::check_context(static_cast<int64_t>(prompt.size()), asked.sampling.max_tokens,
                                  worker.engine_->context_length()));
  out.request.prompt = std::move(prompt);
  out.request.sampling = asked.sampling;
  return out;
}

awaitable<void> Worker::Routes::complete(api::Endpoint endpoint, Request& request,
                                         Responder& responder) {
  if (worker.draining_) {
    co_return co_await send_error(responder,
                                  Error{503, "shutting_down", "This worker is shutting down."});
  }
  auto prepared = co_await off_reactor<Prepared>(
      request, [this, endpoint, trusted = authenticated(request)](const std::string& body) {
        return prepare(endpoint, body, trusted);
      });
  if (!prepared) co_return co_await send_error(responder, prepared.error());
  const api::ApiRequest* const asked = &prepared->asked;
  protocol::GenerateRequest* const made = &prepared->request;
  if (made->context.request_id.empty()) {
    made->context.request_id = request.headers.get("x-request-id");
    if (made->context.request_id.empty()) made->context.request_id = numerics::random_hex(32);
  }
  if (made->leg == LegKind::kPrefill) co_return co_await prefill(std::move(*made), responder);

  const std::string id = (endpoint == api::Endpoint::kChatCompletions ? "chatcmpl-" : "cmpl-") +
                         made->context.request_id;
  const Duration limit = made->context.deadline.count() > 0 ? Duration(made->context.deadline)
                                                            : worker.options_.request_timeout;
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  auto events = std::make_shared<Events>(worker.reactor_);
  worker.open_.insert(events);
  const auto sink = [events](protocol::TokenEvent event) { events->push(std::move(event)); };
  std::function<void()> cancel;
  if (made->leg == LegKind::kDecode) {
    auto leg = worker.handoffs_->start_decode(std::move(*made), sink);
    cancel = [this, leg] { worker.handoffs_->cancel_decode(leg); };
  } else {
    auto sequence = worker.engine_->generate(std::move(*made), sink);
    if (!sequence) {
      worker.open_.erase(events);
      co_return co_await send_error(responder, sequence.error());
    }
    cancel = [this, sequence = *sequence] { worker.engine_->abort(sequence); };
  }
  responder.on_disconnect([cancel, events] {
    cancel();
    events->interrupt();
  });
  if (asked->stream) {
    co_await stream(*asked, id, events, until, responder);
  } else {
    co_await collect(*asked, id, events, until, responder);
  }
  worker.open_.erase(events);
  cancel();  // harmless when the sequence has ended
}

awaitable<void> Worker::Routes::prefill(protocol::GenerateRequest request, Responder& responder) {
  using Outcome = Result<PrefillReport>;
  const std::string id = request.handoff.handoff_id;
  const Duration limit = request.context.deadline.count() > 0 ? Duration(request.context.deadline)
                                                              : worker.options_.request_timeout;
  auto outcome = std::make_shared<EventChannel<Outcome>>(worker.reactor_);
  worker.handoffs_->start_prefill(std::move(request),
                                  [outcome](Outcome done) { outcome->push(std::move(done)); });
  const auto cancel = [this, id](const Error& error) {
    worker.handoffs_->cancel_prefill(id, error);
  };
  responder.on_disconnect([cancel, outcome] {
    cancel(Error{499, "client_closed_request", "The request was cancelled."});
    outcome->interrupt();
  });
  const auto done = co_await outcome->next(std::chrono::steady_clock::now() + limit);
  if (!done) {
    const Error error{504, "deadline_exceeded", "The prefill leg did not end in time."};
    cancel(error);
    co_return co_await send_error(responder, error);
  }
  if (!*done) co_return co_await send_error(responder, done->error());
  const PrefillReport& report = **done;
  JsonValue usage = JsonValue::object();
  usage.set("prompt_tokens", JsonValue::integer(report.prompt_tokens));
  usage.set("cached_tokens", JsonValue::integer(report.cached_tokens));
  JsonValue body = JsonValue::object();
  body.set("object", JsonValue::string("tandem.prefill"));
  body.set("usage", std::move(usage));
  body.set("kv_bytes", JsonValue::unsigned_integer(report.kv_bytes));
  body.set("blocks_sent", JsonValue::integer(report.blocks_sent));
  co_await send_json(responder, 200, body.dump());
}

awaitable<void> Worker::Routes::stream(const api::ApiRequest& asked, const std::string& id,
                                       std::shared_ptr<Events> events, TimePoint until,
                                       Responder& responder) {
  api::ResponseRenderer renderer(asked, id, std::time(nullptr), worker.served_.name);
  auto event = co_await events->next(until);
  if (!event) {
    if (responder.client_gone()) co_return;
    co_return co_await send_error(responder, out_of_time());
  }
  // An error before the first byte is an ordinary answer with its own status.
  if (const auto* failed = std::get_if<protocol::ErrorEvent>(&*event))
    co_return co_await send_error(responder, failed->error);
  net::Headers headers{{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}};
  if (!co_await responder.begin_stream(200, std::move(headers))) co_return;
  std::string bytes = renderer.begin();
  while (true) {
    bytes += renderer.render(*event);
    // Whatever else is ready goes out in the same write.
    while (!renderer.finished()) {
      auto more = events->try_next();
      if (!more) break;
      bytes += renderer.render(*more);
    }
    if (!bytes.empty() && !co_await responder.write(bytes)) co_return;
    bytes.clear();
    if (renderer.finished()) break;
    event = co_await events->next(until);
    if (!event) {
      if (responder.client_gone()) co_return;
      event = protocol::ErrorEvent{out_of_time()};
    }
  }
  (void)co_await responder.finish();
}

awaitable<void> Worker::Routes::collect(const api::ApiRequest& asked, const std::string& id,
                                        std::shared_ptr<Events> events, TimePoint until,
                                        Responder& responder) {
  api::ResponseRenderer renderer(asked, id, std::time(nullptr), worker.served_.name);
  while (!renderer.finished()) {
    auto event = co_await events->next(until);
    if (!event) {
      if (responder.client_gone()) co_return;
      co_return co_await send_error(responder, out_of_time());
    }
    renderer.collect(*event);
  }
  auto body = renderer.body();
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

awaitable<void> Worker::Routes::tokenize(Request& request, Responder& responder) {
  auto body = co_await off_reactor<std::string>(
      request, [this](const std::string& text) -> Result<std::string> {
        TANDEM_TRY(json, parse_json(text));
        TANDEM_TRY(asked, api::parse_tokenize_request(json));
        const auto* chat_template =
            worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
        TANDEM_TRY(tokens, api::tokenize(asked, *worker.served_.tokenizer, chat_template));
        return api::tokenize_body(tokens, worker.engine_->context_length());
      });
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

awaitable<void> Worker::Routes::detokenize(Request& request, Responder& responder) {
  auto body = co_await off_reactor<std::string>(
      request, [this](const std::string& text) -> Result<std::string> {
        TANDEM_TRY(json, parse_json(text));
        TANDEM_TRY(tokens, api::parse_detokenize_request(json, *worker.served_.tokenizer));
        return api::detokenize_body(worker.served_.tokenizer->decode(tokens, true));
      });
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

}  // namespace tandem::worker
