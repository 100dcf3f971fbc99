// How an error of ours is told, in the form that the client's API has for it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http_server.h"
#include "router/reply_stream.h"
#include "router/usage/api.h"

namespace tandem::router {

// The body of an answer.
std::string error_text(Api api, const Error& error);
// What ends a stream that has begun: an error frame, and [DONE] where the API ends its streams so.
// `told`: what a stream of the Responses API has said of itself; nothing yet: the frame gets an id
// of its own.
std::string error_frames(Api api, const Error& error, const ResponseFacts& told = {});
// The same answer to a request that was not read, by its path.
net::HttpRefusal refusal_for(const net::HttpRequest& request, const Error& error);

}  // namespace tandem::router
