#include "net/http_client.h"

namespace tandem::net {

std::string Url::origin() const {
  return std::string(tls ? "https" : "http") + "://" +
         (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

Result<Url> parse_url(std::string_view text) {
  const std::string whole(text);
  Url url;
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  }
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    url.base = text.substr(slash);
    while (url.base.ends_with('/')) url.base.pop_back();
    text = text.substr(0, slash);
  }
  const auto bad = [&] {
    return make_error(400, "bad_url", "'" + whole + "' is not a URL like http://host:port");
  };
  std::string_view port;
  if (text.starts_with("[")) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return bad();
    url.host = text.substr(1, close - 1);
    text.remove_prefix(close + 1);
    if (!text.empty() && text[0] != ':') return bad();
    if (!text.empty()) port = text.substr(1);
  } else {
    const size_t colon = text.find(':');
    url.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon + 1);
    if (colon != std::string_view::npos && port.empty()) return bad();
  }
  if (url.host.empty() || url.host.find_first_of(" \t\r\n@?#") != std::string::npos) return bad();
  uint32_t number = port.empty() ? (url.tls ? 443 : 80) : 0;
  for (const char c : port) {
    if (c < '0' || c > '9' || number > 65535) return bad();
    number = number * 10 + static_cast<uint32_t>(c - '0');
  }
  if (number == 0 || number > 65535) return bad();
  url.port = static_cast<uint16_t>(number);
  return url;
}

}  // namespace tandem::net
