// The worker's HTTP routes: the API dialects and the few internal ones that the router reads.
#pragma once

#include <memory>
#include <string>

#include "api/openai.h"
#include "api/responses.h"
#include "net/http_server.h"
#include "net/route_table.h"
#include "worker/event_channel.h"
#include "worker/worker.h"

namespace tandem::worker {

struct Worker::Routes {
  Worker& worker;

  net::asio::awaitable<void> handle(net::HttpRequest& request, net::HttpResponder& responder);
  // What needs no body: the secret, unknown paths and methods. handle() asks it too.
  std::optional<net::HttpRefusal> check_head(const net::HttpRequest& request) const;

 private:
  // Reading and tokenizing a body.
  static constexpr Duration kPreparationTime = std::chrono::seconds(30);
  using Request = net::HttpRequest;
  using Responder = net::HttpResponder;
  using Events = Worker::Events;

  struct Row;  // of the route table in routes.cc
  static net::RouteMatch<Row> match(const Request& request);
  // A request that was read and found good.
  struct Prepared {
    std::string adapter;  // empty: the model itself
    api::ApiRequest asked;
    protocol::RequestContext context;
    std::vector<std::vector<int32_t>> prompts;
    engine::Engine::GrammarPointer grammar;  // compiled, so that the engine finds it
  };

  net::asio::awaitable<void> health(Request& request, Responder& responder);
  net::asio::awaitable<void> live(Request& request, Responder& responder);
  net::asio::awaitable<void> ready(Request& request, Responder& responder);
  net::asio::awaitable<void> metrics(Request& request, Responder& responder);
  net::asio::awaitable<void> info(Request& request, Responder& responder);
  net::asio::awaitable<void> tokenizer(Request& request, Responder& responder);
  // kv_routes.cc
  net::asio::awaitable<void> kv_stat(Request& request, Responder& responder);
  net::asio::awaitable<void> kv_blocks(Request& request, Responder& responder);
  net::asio::awaitable<void> kv_drop(Request& request, Responder& responder);
  net::asio::awaitable<void> kv_verify(Request& request, Responder& responder);
  net::asio::awaitable<void> models(Request& request, Responder& responder);
  net::asio::awaitable<void> chat(Request& request, Responder& responder);
  net::asio::awaitable<void> completions(Request& request, Responder& responder);
  net::asio::awaitable<void> embeddings(Request& request, Responder& responder);
  net::asio::awaitable<void> responses(Request& request, Responder& responder);
  net::asio::awaitable<void> messages(Request& request, Responder& responder);
  template <api::Endpoint kEndpoint>
  net::asio::awaitable<void> count(Request& request, Responder& responder);
  net::asio::awaitable<void> complete(api::Endpoint endpoint, Request& request,
                                      Responder& responder);
  Error out_of_time() const;
  net::asio::awaitable<void> prefill(protocol::GenerateRequest request, Responder& responder);
  net::asio::awaitable<void> stream(std::unique_ptr<api::ReplyRenderer> renderer,
                                    api::Endpoint endpoint, std::shared_ptr<Events> events,
                                    TimePoint until, Responder& responder);
  net::asio::awaitable<void> collect(std::unique_ptr<api::ReplyRenderer> renderer,
                                     api::Endpoint endpoint, std::shared_ptr<Events> events,
                                     TimePoint until, Responder& responder);
  net::asio::awaitable<void> embed(const api::ApiRequest& asked, const api::ReplyContext& reply,
                                   std::shared_ptr<Events> events, TimePoint until,
                                   Responder& responder);
  Result<std::function<void()>> start(Prepared& prepared, const std::shared_ptr<Events>& events);
  Result<protocol::SequenceId> start_embedding(Prepared& prepared, size_t prompt,
                                               const std::shared_ptr<Events>& events);
  static protocol::LegKind leg_of(const api::ApiRequest& asked);
  protocol::GenerateRequest generate_request(Prepared& prepared, size_t prompt) const;
  api::ReplyContext reply_context(const Prepared& prepared) const;
  net::asio::awaitable<void> tokenize(Request& request, Responder& responder);
  net::asio::awaitable<void> detokenize(Request& request, Responder& responder);
  // On the work pool: reads only what never changes after the start.
  Result<Prepared> prepare(api::Endpoint endpoint, const std::string& body, bool trusted) const;
  template <typename T>
  net::asio::awaitable<Result<T>> off_reactor(Request& request,
                                              std::function<Result<T>(const std::string&)> work) {
    return net::run_on_body<T>(worker.pool_, worker.reactor_, request.body, std::move(work),
                               kPreparationTime);
  }
  bool authenticated(const Request& request) const;
};

net::asio::awaitable<void> send_json(net::HttpResponder& responder, int status, std::string body);
net::asio::awaitable<void> send_error(net::HttpResponder& responder, const Error& error,
                                      api::Endpoint endpoint = api::Endpoint::kChatCompletions);

}  // namespace tandem::worker
