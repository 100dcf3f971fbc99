// The worker's HTTP routes: the API dialects and the few internal ones that the router reads.
#pragma once

#include <memory>
#include <string>

#include "api/openai.h"
#include "net/http_server.h"
#include "worker/event_channel.h"
#include "worker/worker.h"

namespace tandem::worker {

struct Worker::Routes {
  Worker& worker;

  net::asio::awaitable<void> handle(net::HttpRequest& request, net::HttpResponder& responder);

 private:
  using Request = net::HttpRequest;
  using Responder = net::HttpResponder;
  using Events = EventChannel<protocol::TokenEvent>;

  net::asio::awaitable<void> complete(api::Endpoint endpoint, Request& request,
                                      Responder& responder, bool trusted);
  net::asio::awaitable<void> prefill(protocol::GenerateRequest request, Responder& responder);
  net::asio::awaitable<void> stream(const api::ApiRequest& asked, const std::string& id,
                                    std::shared_ptr<Events> events, TimePoint until,
                                    Responder& responder);
  net::asio::awaitable<void> collect(const api::ApiRequest& asked, const std::string& id,
                                     std::shared_ptr<Events> events, TimePoint until,
                                     Responder& responder);
  net::asio::awaitable<void> tokenize(Request& request, Responder& responder);
  net::asio::awaitable<void> detokenize(Request& request, Responder& responder);
  Result<protocol::GenerateRequest> make_request(const api::ApiRequest& asked,
                                                 const Request& request) const;
  bool authenticated(const Request& request) const;
  std::string info() const;
};

net::asio::awaitable<void> send_json(net::HttpResponder& responder, int status, std::string body);
net::asio::awaitable<void> send_error(net::HttpResponder& responder, const Error& error);

}  // namespace tandem::worker
