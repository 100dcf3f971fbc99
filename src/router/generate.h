// The routes that generate: a body is looked at, checked, and run as legs.
#pragma once

#include <memory>

#include "router/checked_request.h"
#include "router/request_id.h"
#include "router/router_core.h"

namespace tandem::router {

// Answers, and gives the answer's status.
net::asio::awaitable<int> generate(std::shared_ptr<RouterCore> core, GenerateRoute route,
                                   net::HttpRequest& request, IdentifiedResponder& responder);

}  // namespace tandem::router
