// CorsPolicy: which web pages may read our answers (the Fetch standard's CORS protocol). Immutable
// after parse().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/headers.h"

namespace tandem::net {

class CorsPolicy {
 public:
  // Each of `origins` is "*" (every page), "local" (pages of this machine: localhost, 127.0.0.1 and
  // [::1] on any port), "none", or an origin such as https://chat.example.org. Errors: 400.
  static Result<CorsPolicy> parse(const std::vector<std::string>& origins);

  // What Access-Control-Allow-Origin says to a page of `origin`; empty: the page gets no answer.
  std::string_view allow(std::string_view origin) const;
  // The fields of an ordinary answer to a request with this Origin; none without one.
  Headers answer_headers(std::string_view origin) const;
  // The fields of the answer to a preflight request (OPTIONS with Access-Control-Request-Method).
  Headers preflight_headers(const Headers& request) const;

 private:
  bool any_ = false;
  bool local_ = false;
  std::vector<std::string> origins_;
};

}  // namespace tandem::net
