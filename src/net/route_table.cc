#include "net/route_table.h"

#include <utility>

#include "base/reply_text.h"

namespace tandem::net {

HttpRefusal refusal(const Error& error, const Headers& more) {
  Headers headers = error_headers(error);
  for (const auto& [name, value] : more) headers.set(name, value);
  return {error.status, std::move(headers), error_body(error)};
}

HttpRefusal unmatched_route(const HttpRequest& request, const std::string& allow) {
  if (allow.empty()) return refusal({404, "not_found", "there is nothing at this path"});
  if (request.method == "OPTIONS") return {204, {{"Allow", allow}}, ""};
  return refusal(
      {405, "method_not_allowed", "this path answers " + allow + ", not " + request.method},
      {{"Allow", allow}});
}

}  // namespace tandem::net
