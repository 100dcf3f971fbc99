#include "base/json_value.h"
#include "net/http_server.h"

namespace tandem::net {

std::string_view http_reason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string http_error_body(const Error& error) {
  std::string_view type = "server_error";
  if (error.status < 500) type = error.status == 429 ? "rate_limit_error" : "invalid_request_error";
  JsonValue fields = JsonValue::object();
  fields.set("message", JsonValue::string(error.message));
  fields.set("type", JsonValue::string(std::string(type)));
  fields.set("param", error.pointer ? JsonValue::string(*error.pointer) : JsonValue());
  fields.set("code", JsonValue::string(error.code));
  JsonValue body = JsonValue::object();
  body.set("error", std::move(fields));
  return body.dump();
}

}  // namespace tandem::net
