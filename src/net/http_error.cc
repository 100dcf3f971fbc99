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
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 426:
      return "Upgrade Required";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
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

Headers error_headers(const Error& error) {
  Headers headers{{"Content-Type", "application/json"}};
  const int status = error.status;
  if (status == 401) headers.add("WWW-Authenticate", "Bearer");
  // Clients that retry at all wait as long as they are told; Codex does not retry a 429 without it.
  if (status == 429 || status == 503) headers.add("Retry-After", "1");
  const bool passes = status == 408 || status == 409 || status == 425 || status == 429;
  if (status < 500 && !passes) headers.add("x-should-retry", "false");
  return headers;
}

}  // namespace tandem::net
