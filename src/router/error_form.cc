#include "router/error_form.h"

#include "api/dialect_errors.h"
#include "base/json_value.h"
#include "base/reply_text.h"
#include "net/route_table.h"
#include "numerics/hmac.h"

namespace tandem::router {

std::string error_text(Api api, const Error& error) {
  return api == Api::kMessages ? api::anthropic_error(error).dump() : error_body(error);
}

std::string error_frames(Api api, const Error& error, const ResponseFacts& told) {
  if (api == Api::kMessages) return "event: error\n" + sse_frame(api::anthropic_error(error));
  if (api != Api::kResponses) return sse_error(error);
  JsonValue detail = JsonValue::object({{"code", JsonValue::string(error.code)}});
  detail.set("message", JsonValue::string(error.message));
  JsonValue response = JsonValue::object();
  response.set("id",
               JsonValue::string(told.id.empty() ? "resp_" + numerics::random_hex(32) : told.id));
  response.set("object", JsonValue::string("response"));
  response.set("status", JsonValue::string("failed"));
  response.set("error", std::move(detail));
  response.set("output", JsonValue::array());
  JsonValue event = JsonValue::object({{"type", JsonValue::string("response.failed")}});
  event.set("sequence_number", JsonValue::integer(told.sequence));
  event.set("response", std::move(response));
  return "event: response.failed\n" + sse_frame(event);
}

net::HttpRefusal refusal_for(const net::HttpRequest& request, const Error& error) {
  net::HttpRefusal made = net::refusal(error);
  // Of the same API, though it counts instead of generating.
  if (request.path == "/v1/messages" || request.path.starts_with("/v1/messages/"))
    made.body = error_text(Api::kMessages, error);
  return made;
}

}  // namespace tandem::router
