// Inside of MockServer: answers that are not an engine's.
#pragma once

#include <string>

#include "base/result.h"
#include "net/http_server.h"

namespace tandem::mock {

const net::Headers& json_headers();
std::string error_text(const Error& error);
net::asio::awaitable<void> send_error(net::HttpResponder& responder, Error error);

}  // namespace tandem::mock
