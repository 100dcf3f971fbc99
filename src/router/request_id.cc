#include "router/request_id.h"

#include <algorithm>

#include "numerics/hmac.h"

namespace tandem::router {

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

// Digits of the system's random numbers, a few hundred at a time: asking for them costs more than
// a message's head. Names, not secrets.
std::string fresh_hex(size_t digits) {
  thread_local std::string store;
  if (store.size() < digits) store = numerics::random_hex(1024);
  std::string taken = store.substr(store.size() - digits);
  store.resize(store.size() - digits);
  return taken;
}

}  // namespace

std::string mint_id() { return fresh_hex(32); }

std::string short_id(uint64_t bits) {
  std::string id;
  for (int i = 0; i < 8; ++i, bits >>= 4) id += kHex[bits & 15];
  return id;
}

std::string traceparent_of(const net::Headers& headers) {
  const std::string_view given = headers.get("traceparent");
  const auto hex = [&](size_t from, size_t count) {
    const std::string_view part = given.substr(from, count);
    return part.size() == count && part.find_first_not_of(kHex) == std::string_view::npos;
  };
  const auto zero = [&](size_t from, size_t count) {
    return given.substr(from, count).find_first_not_of('0') == std::string_view::npos;
  };
  // Later versions may have more behind.
  const bool good = given.size() >= 55 && given.size() <= 256 && hex(0, 2) && given[2] == '-' &&
                    hex(3, 32) && !zero(3, 32) && given[35] == '-' && hex(36, 16) &&
                    !zero(36, 16) && given[52] == '-' && hex(53, 2) && given.substr(0, 2) != "ff" &&
                    (given.size() == 55 || given[55] == '-');
  if (good) return std::string(given);
  return "00-" + mint_id() + "-" + fresh_hex(16) + "-01";
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
