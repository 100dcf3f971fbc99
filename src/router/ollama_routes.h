// Ollama's routes: requests become those of the OpenAI dialect, and answers are translated back on
// their way to the client.
#pragma once

#include <memory>

#include "router/request_id.h"
#include "router/router_core.h"

namespace tandem::router {

using GenerateHandler = net::asio::awaitable<int> (*)(std::shared_ptr<RouterCore>,
                                                      net::HttpRequest&, IdentifiedResponder&);

// POST /api/chat (`chat`) and /api/generate. `messages` and `text` answer /v1/chat/completions and
// /v1/completions.
net::asio::awaitable<int> ollama_route(std::shared_ptr<RouterCore> core, bool chat,
                                       net::HttpRequest& request, IdentifiedResponder& responder,
                                       GenerateHandler messages, GenerateHandler text);

// RFC 3339, UTC.
std::string timestamp(std::time_t at);

}  // namespace tandem::router
