#include "router/error_form.h"

#include "base/json_value.h"
#include "base/reply_text.h"
#include "net/route_table.h"

namespace tandem::router {

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

JsonValue anthropic_error(const Error& error) {
  JsonValue detail = JsonValue::object();
  detail.set("type", JsonValue::string(anthropic_type(error.status)));
  detail.set("message", JsonValue::string(error.message));
  JsonValue json = JsonValue::object();
  json.set("type", JsonValue::string("error"));
  json.set("error", std::move(detail));
  return json;
}

}  // namespace

std::string error_text(Api api, const Error& error) {
  return api == Api::kMessages ? anthropic_error(error).dump() : error_body(error);
}

std::string error_frames(Api api, const Error& error) {
  if (api == Api::kMessages) return "event: error\n" + sse_frame(anthropic_error(error));
  if (api != Api::kResponses) return sse_error(error);
  JsonValue event = JsonValue::object();
  event.set("type", JsonValue::string("error"));
  event.set("code", JsonValue::string(error.code));
  event.set("message", JsonValue::string(error.message));
  event.set("param", JsonValue());
  return "event: error\n" + sse_frame(event);
}

net::HttpRefusal refusal_for(const net::HttpRequest& request, const Error& error) {
  net::HttpRefusal made = net::refusal(error);
  // Of the same API, though it counts instead of generating.
  if (request.path == "/v1/messages" || request.path.starts_with("/v1/messages/"))
    made.body = error_text(Api::kMessages, error);
  return made;
}

}  // namespace tandem::router
