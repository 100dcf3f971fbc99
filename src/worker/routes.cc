#include "worker/routes.h"

#include <ctime>
#include <utility>

#include "base/reply_text.h"
#include "numerics/hmac.h"
#include "text/tokenizer_spec.h"

namespace tandem::worker {

namespace asio = net::asio;
using asio::awaitable;
using protocol::LegKind;

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

awaitable<void> Worker::Routes::handle(Request& request, Responder& responder) {
  const std::string& path = request.path;
  const bool get = request.method == "GET" || request.method == "HEAD";
  const bool post = request.method == "POST";
  if (get && path == "/health") {
    const bool well = !worker.engine_->stalled();
    co_return co_await send_json(responder, well ? 200 : 503,
                                 well ? R"({"status":"ok"})" : R"({"status":"stalled"})");
  }
  if (get && path == "/ready") {
    const bool ready = !worker.draining_ && !worker.engine_->stalled();
    co_return co_await send_json(responder, ready ? 200 : 503,
                                 ready ? R"({"status":"ready"})" : R"({"status":"not ready"})");
  }
  const bool trusted = authenticated(request);
  if (!worker.options_.secret.empty() && !trusted) {
    co_return co_await send_error(
        responder,
        Error{401, "unauthorized", "This worker answers its router only; send requests there."});
  }
  if (get && path == "/metrics") {
    (void)co_await responder.send(200, {{"Content-Type", observe::kMetricsContentType}},
                                  worker.metrics_.render());
  } else if (get && path == "/tandem/v1/info") {
    co_await send_json(responder, 200, info());
  } else if (get && path == "/tandem/v1/tokenizer") {
    co_await send_json(responder, 200,
                       text::tokenizer_spec_to_json(worker.served_.tokenizer->spec()).dump());
  } else if (get && path == "/v1/models") {
    const std::string names[] = {worker.served_.name};
    co_await send_json(
        responder, 200,
        api::models_body(names, std::time(nullptr), worker.engine_->context_length()));
  } else if (post && path == "/v1/chat/completions") {
    co_await complete(api::Endpoint::kChatCompletions, request, responder, trusted);
  } else if (post && path == "/v1/completions") {
    co_await complete(api::Endpoint::kCompletions, request, responder, trusted);
  } else if (post && path == "/tokenize") {
    co_await tokenize(request, responder);
  } else if (post && path == "/detokenize") {
    co_await detokenize(request, responder);
  } else {
    co_await send_error(responder, Error{404, "not_found",
                                         "There is no " + request.method + " " + path + " here."});
  }
}

std::string Worker::Routes::info() const {
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
  return out.dump();
}

Result<protocol::GenerateRequest> Worker::Routes::make_request(const api::ApiRequest& asked,
                                                               const Request& request) const {
  protocol::GenerateRequest out;
  if (asked.envelope) {
    out.context = asked.envelope->context;
    out.leg = asked.envelope->leg;
    out.handoff = asked.envelope->handoff;
  } else if (asked.model != "default" && asked.model != worker.served_.name) {
    return make_error(404, "model_not_found",
                      "The model \"" + asked.model + "\" is not served here; \"" +
                          worker.served_.name + "\" is.");
  }
  if (out.context.request_id.empty()) {
    out.context.request_id = request.headers.get("x-request-id");
    if (out.context.request_id.empty()) out.context.request_id = numerics::random_hex(32);
  }
  const auto* chat_template =
      worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
  TANDEM_TRY(prompt, api::render_prompt(asked, *worker.served_.tokenizer, chat_template));
  TANDEM_CHECK(api::check_context(static_cast<int64_t>(prompt.size()), asked.sampling.max_tokens,
                                  worker.engine_->context_length()));
  out.prompt = std::move(prompt);
  out.sampling = asked.sampling;
  return out;
}

awaitable<void> Worker::Routes::complete(api::Endpoint endpoint, Request& request,
                                         Responder& responder, bool trusted) {
  if (worker.draining_) {
    co_return co_await send_error(responder,
                                  Error{503, "shutting_down", "This worker is shutting down."});
  }
  auto body = parse_json(request.body);
  if (!body) co_return co_await send_error(responder, body.error());
  auto asked = api::parse_request(endpoint, *body, trusted);
  if (!asked) co_return co_await send_error(responder, asked.error());
  auto made = make_request(*asked, request);
  if (!made) co_return co_await send_error(responder, made.error());
  *body = JsonValue();  // a large prompt is not needed twice
  if (made->leg == LegKind::kPrefill) co_return co_await prefill(std::move(*made), responder);

  const std::string id = (endpoint == api::Endpoint::kChatCompletions ? "chatcmpl-" : "cmpl-") +
                         made->context.request_id;
  const Duration limit = made->context.deadline.count() > 0 ? Duration(made->context.deadline)
                                                            : worker.options_.request_timeout;
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  auto events = std::make_shared<Events>(worker.reactor_);
  const auto sink = [events](protocol::TokenEvent event) { events->push(std::move(event)); };
  std::function<void()> cancel;
  if (made->leg == LegKind::kDecode) {
    auto leg = worker.handoffs_->start_decode(std::move(*made), sink);
    cancel = [this, leg] { worker.handoffs_->cancel_decode(leg); };
  } else {
    auto sequence = worker.engine_->generate(std::move(*made), sink);
    if (!sequence) co_return co_await send_error(responder, sequence.error());
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
    co_return co_await send_error(
        responder, Error{504, "deadline_exceeded", "No token was ready before the deadline."});
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
      event =
          protocol::ErrorEvent{Error{504, "deadline_exceeded", "The request's deadline passed."}};
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
      co_return co_await send_error(
          responder, Error{504, "deadline_exceeded", "The request's deadline passed."});
    }
    renderer.collect(*event);
  }
  auto body = renderer.body();
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

awaitable<void> Worker::Routes::tokenize(Request& request, Responder& responder) {
  auto body = parse_json(request.body);
  if (!body) co_return co_await send_error(responder, body.error());
  auto asked = api::parse_tokenize_request(*body);
  if (!asked) co_return co_await send_error(responder, asked.error());
  const auto* chat_template =
      worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
  auto tokens = api::tokenize(*asked, *worker.served_.tokenizer, chat_template);
  if (!tokens) co_return co_await send_error(responder, tokens.error());
  co_await send_json(responder, 200, api::tokenize_body(*tokens, worker.engine_->context_length()));
}

awaitable<void> Worker::Routes::detokenize(Request& request, Responder& responder) {
  auto body = parse_json(request.body);
  if (!body) co_return co_await send_error(responder, body.error());
  auto tokens = api::parse_detokenize_request(*body, *worker.served_.tokenizer);
  if (!tokens) co_return co_await send_error(responder, tokens.error());
  co_await send_json(responder, 200,
                     api::detokenize_body(worker.served_.tokenizer->decode(*tokens, true)));
}

}  // namespace tandem::worker
