// The routes that show and change the fleet: /router/workers.
//
//   GET    /router/workers                 every worker: role, connector, state, load
//   POST   /router/workers                 {"url", "role"?, "connector"?, "group"?, "model"?,
//                                           "bootstrap_port"?, "dp_size"?, "kv_events"?,
//                                           "notify_port"?, "tp_size"?, "ready"?}: adds one
//                                           (fleet_file.h)
//   POST   /router/workers/{id}/drain      no new legs; those that run go on
//   POST   /router/workers/{id}/undrain
//   DELETE /router/workers/{id}            drains it and forgets it
#pragma once

#include <memory>
#include <string_view>

#include "router/request_id.h"
#include "router/router_core.h"

namespace tandem::router {

inline constexpr std::string_view kWorkersPath = "/router/workers";

net::asio::awaitable<int> list_workers(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                       IdentifiedResponder& responder);
net::asio::awaitable<int> add_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                     IdentifiedResponder& responder);
net::asio::awaitable<int> drain_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                       IdentifiedResponder& responder);
net::asio::awaitable<int> undrain_worker(std::shared_ptr<RouterCore> core,
                                         net::HttpRequest& request, IdentifiedResponder& responder);
net::asio::awaitable<int> remove_worker(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                        IdentifiedResponder& responder);

// The row of the table that a path of the form /router/workers/7[/drain] belongs to; else the path.
std::string_view worker_route(std::string_view path);

}  // namespace tandem::router
