// The routes that run the model: requests become one or several runs of the engine, their events
// one answer.
#include <algorithm>
#include <ctime>
#include <utility>

#include "api/embeddings.h"
#include "api/reply_grammar.h"
#include "base/reply_text.h"
#include "numerics/hmac.h"
#include "worker/routes.h"

namespace tandem::worker {

namespace asio = net::asio;
using asio::awaitable;
using protocol::LegKind;

awaitable<void> Worker::Routes::chat(Request& request, Responder& responder) {
  return complete(api::Endpoint::kChatCompletions, request, responder);
}

awaitable<void> Worker::Routes::completions(Request& request, Responder& responder) {
  return complete(api::Endpoint::kCompletions, request, responder);
}

awaitable<void> Worker::Routes::responses(Request& request, Responder& responder) {
  return complete(api::Endpoint::kResponses, request, responder);
}

awaitable<void> Worker::Routes::messages(Request& request, Responder& responder) {
  return complete(api::Endpoint::kMessages, request, responder);
}

awaitable<void> Worker::Routes::embeddings(Request& request, Responder& responder) {
  return complete(api::Endpoint::kEmbeddings, request, responder);
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
  const auto& adapters = worker.served_.adapters;
  if (std::binary_search(adapters.begin(), adapters.end(), asked.model)) out.adapter = asked.model;
  out.context.salt = asked.cache_salt;  // an envelope has the router's
  if (asked.envelope) out.context = asked.envelope->context;
  if (!asked.envelope && !asked.previous_response_id.empty()) {
    return make_error(400, "previous_response_not_found",
                      "a worker keeps no responses: ask its router, or send the whole conversation",
                      "/previous_response_id");
  }
  if (!asked.envelope && out.adapter.empty() && asked.model != "default" &&
      asked.model != worker.served_.name) {
    return tl::unexpected(api::model_not_found(asked.model));
  }
  const auto* chat_template =
      worker.served_.chat_template ? &*worker.served_.chat_template : nullptr;
  TANDEM_TRY(prompts, api::render_prompts(asked, *worker.served_.tokenizer, chat_template));
  for (const auto& prompt : prompts) {
    TANDEM_CHECK(api::check_context(static_cast<int64_t>(prompt.size()), asked,
                                    worker.engine_->context_length()));
  }
  const bool asks = !asked.messages.is_null() || asked.prompts.size() == prompts.size();
  if (!asks)
    return invalid_request("one list of ids is needed for each prompt", "/tandem/prompt_token_ids");
  if (prompts.size() > 1 && leg_of(asked) != LegKind::kUnified)
    return invalid_request("several prompts are not handed off", "/tandem/leg");
  if (endpoint != api::Endpoint::kEmbeddings && !api::only_counts(endpoint)) {
    const api::Opening opening =
        worker.served_.format->opening(api::prompt_end(prompts[0], *worker.served_.tokenizer));
    TANDEM_TRY(grammar, api::reply_grammar(asked, *worker.served_.format, opening));
    if (grammar) out.asked.grammar = std::move(grammar);
  }
  out.prompts = std::move(prompts);
  if (asked.grammar) {
    TANDEM_TRY(grammar, worker.engine_->compile_grammar(*asked.grammar));
    out.grammar = std::move(grammar);
  }
  return out;
}

LegKind Worker::Routes::leg_of(const api::ApiRequest& asked) {
  return asked.envelope ? asked.envelope->leg : LegKind::kUnified;
}

protocol::GenerateRequest Worker::Routes::generate_request(Prepared& prepared,
                                                           size_t prompt) const {
  protocol::GenerateRequest made;
  made.context = prepared.context;
  made.prompt = std::move(prepared.prompts[prompt]);
  made.adapter = prepared.adapter;
  made.sampling = prepared.asked.sampling;
  made.grammar = prepared.asked.grammar;
  if (api::is_conversation(prepared.asked.endpoint))
    made.sampling.kept_tokens = worker.served_.format->kept_tokens(!prepared.asked.tools.is_null());
  made.leg = leg_of(prepared.asked);
  if (prepared.asked.envelope) made.handoff = prepared.asked.envelope->handoff;
  return made;
}

// Starts every prompt's run. What is returned ends them all; harmless when they have ended.
Result<std::function<void()>> Worker::Routes::start(Prepared& prepared,
                                                    const std::shared_ptr<Events>& events) {
  if (leg_of(prepared.asked) == LegKind::kDecode) {
    const auto sink = [events](protocol::TokenEvent event) { events->push({0, std::move(event)}); };
    auto leg = worker.handoffs_->start_decode(generate_request(prepared, 0), sink);
    return [this, leg] { worker.handoffs_->cancel_decode(leg); };
  }
  std::vector<protocol::SequenceId> runs;
  const auto cancel = [this](const std::vector<protocol::SequenceId>& ids) {
    for (const protocol::SequenceId id : ids) worker.engine_->abort(id);
  };
  for (size_t prompt = 0; prompt < prepared.prompts.size(); ++prompt) {
    auto run = prepared.asked.endpoint == api::Endpoint::kEmbeddings
                   ? start_embedding(prepared, prompt, events)
                   : worker.engine_->generate(generate_request(prepared, prompt),
                                              [events, prompt](auto event) {
                                                events->push({prompt, std::move(event)});
                                              });
    if (!run) {
      cancel(runs);
      return tl::unexpected(run.error());
    }
    runs.push_back(*run);
  }
  return [cancel, runs = std::move(runs)] { cancel(runs); };
}

Result<protocol::SequenceId> Worker::Routes::start_embedding(
    Prepared& prepared, size_t prompt, const std::shared_ptr<Events>& events) {
  protocol::EmbedRequest made;
  made.context = prepared.context;
  made.prompt = std::move(prepared.prompts[prompt]);
  made.adapter = prepared.adapter;
  made.pooling = prepared.asked.pooling.value_or(worker.options_.pooling);
  return worker.engine_->embed(std::move(made), [events, prompt](Result<engine::Embedding> done) {
    if (!done) return events->push({prompt, protocol::ErrorEvent{done.error()}});
    protocol::FinishEvent finish;
    finish.usage = done->usage;
    events->push({prompt, std::move(finish), std::move(done->values)});
  });
}

awaitable<void> Worker::Routes::complete(api::Endpoint endpoint, Request& request,
                                         Responder& responder) {
  if (worker.draining_) {
    co_return co_await send_error(
        responder, Error{503, "shutting_down", "This worker is shutting down."}, endpoint);
  }
  auto prepared = co_await off_reactor<Prepared>(
      request, [this, endpoint, trusted = authenticated(request)](const std::string& body) {
        return prepare(endpoint, body, trusted);
      });
  if (!prepared) co_return co_await send_error(responder, prepared.error(), endpoint);
  protocol::RequestContext& context = prepared->context;
  if (context.request_id.empty()) {
    context.request_id = request.headers.get("x-request-id");
    if (context.request_id.empty()) context.request_id = numerics::random_hex(32);
  }
  if (leg_of(prepared->asked) == LegKind::kPrefill)
    co_return co_await prefill(generate_request(*prepared, 0), responder);

  const Duration limit =
      context.deadline.count() > 0 ? Duration(context.deadline) : worker.options_.request_timeout;
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  api::ReplyContext reply = reply_context(*prepared);
  auto events = std::make_shared<Events>(worker.reactor_);
  auto cancel = start(*prepared, events);
  if (!cancel) co_return co_await send_error(responder, cancel.error(), endpoint);
  worker.open_.insert(events);
  responder.on_disconnect([cancel = *cancel, events] {
    cancel();
    events->interrupt();
  });
  if (endpoint == api::Endpoint::kEmbeddings) {
    co_await embed(prepared->asked, reply, events, until, responder);
  } else if (prepared->asked.stream) {
    co_await stream(api::make_renderer(prepared->asked, std::move(reply)), endpoint, events, until,
                    responder);
  } else {
    co_await collect(api::make_renderer(prepared->asked, std::move(reply)), endpoint, events, until,
                     responder);
  }
  worker.open_.erase(events);
  (*cancel)();
}

namespace {

std::string reply_prefix(api::Endpoint endpoint) {
  switch (endpoint) {
    case api::Endpoint::kChatCompletions:
      return "chatcmpl-";
    case api::Endpoint::kResponses:
      return "resp_";
    case api::Endpoint::kMessages:
      return "msg_";
    default:
      return "cmpl-";
  }
}

}  // namespace

api::ReplyContext Worker::Routes::reply_context(const Prepared& prepared) const {
  const api::Endpoint endpoint = prepared.asked.endpoint;
  const bool chat = api::is_conversation(endpoint);
  api::ReplyContext made;
  made.id = reply_prefix(endpoint) + prepared.context.request_id;
  // These ids are names that clients come back with: no two answers may share one.
  if (endpoint == api::Endpoint::kResponses || endpoint == api::Endpoint::kMessages)
    made.id = reply_prefix(endpoint) + numerics::random_hex(32);
  made.created = std::time(nullptr);
  made.model = prepared.adapter.empty() ? worker.served_.name : prepared.adapter;
  made.fingerprint = worker.fingerprint_;
  for (const auto& prompt : prepared.prompts)
    made.prompt_tokens.push_back(static_cast<int64_t>(prompt.size()));
  if (chat) {
    made.reading.push_back(api::reading_of(prepared.asked, worker.served_.format,
                                           prepared.prompts[0], *worker.served_.tokenizer,
                                           numerics::random_hex(32)));
  }
  made.tokenizer = worker.served_.tokenizer.get();
  if (prepared.grammar) made.notes = api::reply_notes(prepared.grammar->notes());
  return made;
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

awaitable<void> Worker::Routes::stream(std::unique_ptr<api::ReplyRenderer> renderer,
                                       api::Endpoint endpoint, std::shared_ptr<Events> events,
                                       TimePoint until, Responder& responder) {
  auto next = co_await events->next(until);
  if (!next) {
    if (responder.client_gone()) co_return;
    co_return co_await send_error(responder, out_of_time(), endpoint);
  }
  // An error before the first byte is an ordinary answer with its own status.
  if (const auto* failed = std::get_if<protocol::ErrorEvent>(&next->event))
    co_return co_await send_error(responder, failed->error, endpoint);
  net::Headers headers{{"Content-Type", "text/event-stream; charset=utf-8"},
                       {"Cache-Control", "no-cache"}};
  if (!co_await responder.begin_stream(200, std::move(headers))) co_return;
  std::string bytes = renderer->begin();
  while (true) {
    bytes += renderer->render(next->prompt, next->event);
    // Whatever else is ready goes out in the same write.
    while (!renderer->finished()) {
      auto more = events->try_next();
      if (!more) break;
      bytes += renderer->render(more->prompt, more->event);
    }
    if (!bytes.empty() && !co_await responder.write(bytes)) co_return;
    bytes.clear();
    if (renderer->finished()) break;
    next = co_await events->next(until);
    if (!next) {
      if (responder.client_gone()) co_return;
      next = RequestEvent{0, protocol::ErrorEvent{out_of_time()}};
    }
  }
  (void)co_await responder.finish();
}

awaitable<void> Worker::Routes::collect(std::unique_ptr<api::ReplyRenderer> renderer,
                                        api::Endpoint endpoint, std::shared_ptr<Events> events,
                                        TimePoint until, Responder& responder) {
  while (!renderer->finished()) {
    auto next = co_await events->next(until);
    if (!next) {
      if (responder.client_gone()) co_return;
      co_return co_await send_error(responder, out_of_time(), endpoint);
    }
    renderer->collect(next->prompt, next->event);
  }
  auto body = renderer->body();
  if (!body) co_return co_await send_error(responder, body.error(), endpoint);
  co_await send_json(responder, 200, std::move(*body));
}

awaitable<void> Worker::Routes::embed(const api::ApiRequest& asked, const api::ReplyContext& reply,
                                      std::shared_ptr<Events> events, TimePoint until,
                                      Responder& responder) {
  std::vector<std::vector<float>> vectors(reply.prompt_tokens.size());
  int64_t prompt_tokens = 0;
  for (size_t open = vectors.size(); open > 0; --open) {
    auto next = co_await events->next(until);
    if (!next) {
      if (responder.client_gone()) co_return;
      co_return co_await send_error(responder, out_of_time());
    }
    if (const auto* failed = std::get_if<protocol::ErrorEvent>(&next->event))
      co_return co_await send_error(responder, failed->error);
    prompt_tokens += std::get<protocol::FinishEvent>(next->event).usage.prompt_tokens;
    vectors[next->prompt] = std::move(next->embedding);
  }
  auto body = api::embeddings_body(asked, reply.model, std::move(vectors), prompt_tokens);
  if (!body) co_return co_await send_error(responder, body.error());
  co_await send_json(responder, 200, std::move(*body));
}

}  // namespace tandem::worker
