// Routes beside generation of the dialects that agents speak: counting tokens, responses that were
// kept.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "router/request_id.h"
#include "router/router_core.h"

namespace tandem::router {

inline constexpr std::string_view kResponsesPath = "/v1/responses";
// A path below it as the row of the route table that it is.
std::string_view response_route(std::string_view path);

// A body is counted here for Tandem's own models; other engines count their own.
net::asio::awaitable<int> count_tokens(std::shared_ptr<RouterCore> core, api::Endpoint endpoint,
                                       net::HttpRequest& request, IdentifiedResponder& responder);
net::asio::awaitable<int> get_response(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                       IdentifiedResponder& responder);
net::asio::awaitable<int> delete_response(std::shared_ptr<RouterCore> core,
                                          net::HttpRequest& request,
                                          IdentifiedResponder& responder);
net::asio::awaitable<int> list_input_items(std::shared_ptr<RouterCore> core,
                                           net::HttpRequest& request,
                                           IdentifiedResponder& responder);
// Some clients try a WebSocket first: this answer costs them nothing, others cost them seconds.
net::asio::awaitable<int> no_websocket(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
                                       IdentifiedResponder& responder);

// The items of the conversation that a body goes on from, as JSON text; empty: from none. Errors:
// 400 "previous_response_not_found".
Result<std::string> earlier_items(api::ResponseStore& store, const JsonValue& body,
                                  uint64_t tenant);
// Keeps a response that is complete. `reply`: the response object.
void keep_response(api::ResponseStore& store, uint64_t tenant, const std::string& conversation,
                   const std::string& input, const JsonValue& reply);

// Who is asked to share fairly, and whose responses these are: the holder of a key.
uint64_t tenant_of(const net::Headers& headers);

}  // namespace tandem::router
