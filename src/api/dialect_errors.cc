#include "api/dialect_errors.h"

#include "base/reply_text.h"

namespace tandem::api {

namespace {

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

JsonValue anthropic_error(const Error& error) {
  JsonValue detail = JsonValue::object();
  detail.set("type", JsonValue::string(anthropic_type(error.status)));
  detail.set("message", JsonValue::string(error.message));
  detail.set("code", JsonValue::string(error.code));
  JsonValue json = JsonValue::object();
  json.set("type", JsonValue::string("error"));
  json.set("error", std::move(detail));
  return json;
}

std::string error_text(Endpoint endpoint, const Error& error) {
  const bool anthropic = endpoint == Endpoint::kMessages || endpoint == Endpoint::kCountTokens;
  return anthropic ? anthropic_error(error).dump() : error_body(error);
}

}  // namespace tandem::api
