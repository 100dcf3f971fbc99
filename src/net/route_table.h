// The explicit route tables of the servers: one row per method and path. The same rows serve the
// requests, the 405s with their Allow, the check for keys, and whoever lists the routes.
#pragma once

#include <string>
#include <string_view>

#include "net/http_server.h"

namespace tandem::net {

struct RouteHead {
  std::string_view method;  // GET answers HEAD too
  std::string_view path;
  bool open = false;  // needs no key
};

template <typename Row>
struct RouteMatch {
  const Row* row = nullptr;  // null: nothing at the path, or not with this method
  std::string allow;         // the methods of the path; empty: nothing there
};

// `rows`: anything to iterate over whose elements derive from RouteHead.
template <typename Rows>
auto match_route(const Rows& rows, std::string_view method, std::string_view path) {
  RouteMatch<typename Rows::value_type> match;
  for (const auto& row : rows) {
    if (row.path != path) continue;
    match.allow += std::string(match.allow.empty() ? "" : ", ") + std::string(row.method);
    if (row.method == "GET") match.allow += ", HEAD";
    if (row.method == method || (row.method == "GET" && method == "HEAD")) match.row = &row;
  }
  if (!match.allow.empty()) match.allow += ", OPTIONS";
  return match;
}

// What a request without a row gets: 404, 405 with Allow, or 204 with Allow for OPTIONS.
HttpRefusal unmatched_route(const HttpRequest& request, const std::string& allow);
HttpRefusal refusal(const Error& error, const Headers& more = {});

}  // namespace tandem::net
