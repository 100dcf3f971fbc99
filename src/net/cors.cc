#include "net/cors.h"

#include <algorithm>

namespace tandem::net {

namespace {

// "http://HOST" or "https://HOST", with or without a port; nothing behind it.
bool is_local(std::string_view origin) {
  const size_t scheme = origin.starts_with("https://") ? 8 : origin.starts_with("http://") ? 7 : 0;
  if (scheme == 0) return false;
  origin.remove_prefix(scheme);
  for (const std::string_view host : {"localhost", "127.0.0.1", "[::1]"}) {
    if (!origin.starts_with(host)) continue;
    const std::string_view rest = origin.substr(host.size());
    const bool port = rest.size() >= 2 && rest.size() <= 6 && rest[0] == ':' &&
                      rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (rest.empty() || port) return true;
  }
  return false;
}

bool is_field_list(std::string_view text) {
  return text.size() <= 4096 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

}  // namespace

Result<CorsPolicy> CorsPolicy::parse(const std::vector<std::string>& origins) {
  CorsPolicy policy;
  for (const std::string& origin : origins) {
    if (origin == "*") {
      policy.any_ = true;
    } else if (origin == "local") {
      policy.local_ = true;
    } else if (origin != "none") {
      const size_t scheme = origin.find("://");
      if (scheme == std::string::npos || scheme == 0 || scheme + 3 == origin.size() ||
          origin.find_first_of("/ \t\r\n*", scheme + 3) != std::string::npos) {
        return make_error(400, "invalid_option",
                          "'" + origin +
                              "' is not an origin such as https://chat.example.org, nor *, local "
                              "or none");
      }
      policy.origins_.push_back(origin);
    }
  }
  return policy;
}

std::string_view CorsPolicy::allow(std::string_view origin) const {
  if (origin.empty()) return {};
  if (any_) return "*";
  if (local_ && is_local(origin)) return origin;
  return std::find(origins_.begin(), origins_.end(), origin) != origins_.end() ? origin
                                                                               : std::string_view();
}

Headers CorsPolicy::answer_headers(std::string_view origin) const {
  Headers made;
  if (origin.empty()) return made;
  if (!any_) made.add("Vary", "Origin");
  const std::string_view allowed = allow(origin);
  if (allowed.empty()) return made;
  made.add("Access-Control-Allow-Origin", std::string(allowed));
  made.add("Access-Control-Expose-Headers", "x-request-id, retry-after");
  return made;
}

Headers CorsPolicy::preflight_headers(const Headers& request) const {
  Headers made = answer_headers(request.get("origin"));
  if (made.find("access-control-allow-origin") == nullptr) return made;
  made.add("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  const std::string_view asked = request.get("access-control-request-headers");
  if (!asked.empty() && is_field_list(asked))
    made.add("Access-Control-Allow-Headers", std::string(asked));
  if (request.find("access-control-request-private-network") != nullptr)
    made.add("Access-Control-Allow-Private-Network", "true");
  made.add("Access-Control-Max-Age", "7200");
  return made;
}

}  // namespace tandem::net
