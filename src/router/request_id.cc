#include "router/request_id.h"

#include <algorithm>
#include <array>

#include <sys/random.h>

namespace tandem::router {

std::string mint_id() {
  std::array<unsigned char, 16> bytes{};
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (const unsigned char byte : bytes) {
    id += kHex[byte >> 4];
    id += kHex[byte & 15];
  }
  return id;
}

std::string request_id_of(const net::Headers& headers) {
  const std::string_view given = headers.get(kRequestId);
  const auto sane = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_.:/+=@|").find(c) != std::string_view::npos;
  };
  const bool good =
      !given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), sane);
  return good ? std::string(given) : mint_id();
}

}  // namespace tandem::router
