// Ollama's routes: requests become those of the OpenAI dialect, and answers are translated back on
// their way to the client.
#pragma once

#include <memory>

#include "api/ollama.h"
#include "router/request_id.h"
#include "router/router_core.h"

namespace tandem::router {

using GenerateHandler = net::asio::awaitable<int> (*)(std::shared_ptr<RouterCore>,
                                                      net::HttpRequest&, IdentifiedResponder&);

// What answers the OpenAI dialect's routes.
struct OllamaHandlers {
  GenerateHandler chat;
  GenerateHandler completions;
  GenerateHandler embeddings;
};

net::asio::awaitable<int> ollama_route(std::shared_ptr<RouterCore> core, api::OllamaRoute route,
                                       net::HttpRequest& request, IdentifiedResponder& responder,
                                       OllamaHandlers handlers);

// RFC 3339, UTC.
std::string timestamp(std::time_t at);

}  // namespace tandem::router
