#include "worker/routes.h"

#include <array>
#include <ctime>
#include <utility>

#include "api/dialect_errors.h"
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

awaitable<void> send_error(net::HttpResponder& responder, const Error& error,
                           api::Endpoint endpoint) {
  (void)co_await responder.send(error.status, net::error_headers(error),
                                api::error_text(endpoint, error));
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
      Row{{"GET", "/tandem/v1/kv"}, &Routes::kv_stat},
      Row{{"GET", "/tandem/v1/kv/blocks"}, &Routes::kv_blocks},
      Row{{"POST", "/tandem/v1/kv/drop"}, &Routes::kv_drop},
      Row{{"POST", "/tandem/v1/kv/verify"}, &Routes::kv_verify},
      Row{{"GET", "/v1/models"}, &Routes::models},
      Row{{"POST", "/v1/chat/completions"}, &Routes::chat},
      Row{{"POST", "/v1/completions"}, &Routes::completions},
      Row{{"POST", "/v1/embeddings"}, &Routes::embeddings},
      Row{{"POST", "/v1/responses"}, &Routes::responses},
      Row{{"POST", "/v1/responses/input_tokens"}, &Routes::count<api::Endpoint::kInputTokens>},
      Row{{"POST", "/v1/messages"}, &Routes::messages},
      Row{{"POST", "/v1/messages/count_tokens"}, &Routes::count<api::Endpoint::kCountTokens>},
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
  const bool ready =
      !worker.draining_ && !worker.engine_->stalled() && !worker.handoffs_->must_restart();
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
  const int32_t context = worker.engine_->context_length();
  std::vector<api::ModelEntry> entries = {{worker.served_.name, context, ""}};
  for (const std::string& adapter : worker.served_.adapters)
    entries.push_back({adapter, context, worker.served_.name});
  co_await send_json(responder, 200, api::models_body(entries, std::time(nullptr)));
}

awaitable<void> Worker::Routes::info(Request&, Responder& responder) {
  JsonValue model = JsonValue::object();
  model.set("id", JsonValue::string(worker.served_.name));
  model.set("context_length", JsonValue::integer(worker.engine_->context_length()));
  model.set("lineage", JsonValue::string(worker.served_.lineage));
  model.set("tokenizer", JsonValue::string(worker.served_.tokenizer_identity));
  JsonValue adapters = JsonValue::array();
  for (const std::string& adapter : worker.served_.adapters)
    adapters.push_back(JsonValue::string(adapter));
  model.set("adapters", std::move(adapters));
  JsonValue out = JsonValue::object();
  out.set("version", JsonValue::integer(1));
  out.set("role", JsonValue::string(std::string(role_name(worker.options_.role))));
  out.set("epoch", JsonValue::string(worker.epoch_));
  out.set("model", std::move(model));
  out.set("block_tokens", JsonValue::integer(worker.options_.block_tokens));
  out.set("handoff_address", JsonValue::string(worker.handoffs_->address()));
  out.set("pages_total", JsonValue::integer(worker.memory_.pages));
  out.set("kv_dtype", JsonValue::string(std::string(ops::kv_dtype_name(worker.memory_.kv_dtype))));
  out.set("page_bytes", JsonValue::unsigned_integer(worker.engine_->layout().page_bytes()));
  out.set("token_capacity", JsonValue::integer(worker.engine_->token_capacity()));
  if (worker.kv_events_) {
    JsonValue events = JsonValue::object();
    events.set("endpoint", JsonValue::string(worker.kv_events_->endpoint()));
    events.set("replay_endpoint", JsonValue::string(worker.kv_events_->replay_endpoint()));
    events.set("topic", JsonValue::string(worker.kv_events_->topic()));
    out.set("kv_events", std::move(events));
  }
  co_await send_json(responder, 200, out.dump());
}

awaitable<void> Worker::Routes::tokenize(Request& request, Responder& responder) {
  auto body = co_await off_reactor<std::string>(
      request, [this](const std::string& text) -> Result<std::string> {
        TANDEM_TRY(json, parse_json(text));
        TANDEM_TRY(asked, api::parse_request(api::Endpoint::kTokenize, json));
        const auto* chat_template =
            worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
        TANDEM_TRY(tokens, api::tokenize(asked, *worker.served_.tokenizer, chat_template));
        return api::tokenize_body(tokens, worker.engine_->context_length());
      });
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

template <api::Endpoint kEndpoint>
awaitable<void> Worker::Routes::count(Request& request, Responder& responder) {
  auto body = co_await off_reactor<std::string>(
      request, [this](const std::string& text) -> Result<std::string> {
        TANDEM_TRY(prepared, prepare(kEndpoint, text, false));
        return api::count_body(kEndpoint, static_cast<int64_t>(prepared.prompts[0].size()));
      });
  if (body) {
    co_await send_json(responder, 200, std::move(*body));
  } else {
    co_await send_error(responder, body.error(), kEndpoint);
  }
}

awaitable<void> Worker::Routes::detokenize(Request& request, Responder& responder) {
  auto body = co_await off_reactor<std::string>(
      request, [this](const std::string& text) -> Result<std::string> {
        TANDEM_TRY(json, parse_json(text));
        TANDEM_TRY(asked, api::parse_request(api::Endpoint::kDetokenize, json));
        TANDEM_TRY(decoded, api::detokenize(asked, *worker.served_.tokenizer));
        return api::detokenize_body(decoded);
      });
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

}  // namespace tandem::worker
