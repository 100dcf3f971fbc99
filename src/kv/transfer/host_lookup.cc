#include "kv/transfer/host_lookup.h"

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include <netdb.h>

namespace tandem::kv {
namespace {

constexpr int kMostUnderWay = 32;
std::atomic<int> under_way{0};

HostAddresses ask_system(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return make_error(502, "connect_failed",
                      "The host " + host + " is not known: " + gai_strerror(error) + ".");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  std::vector<HostAddress> out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    HostAddress& address = out.emplace_back();
    std::memcpy(&address.name, at->ai_addr, at->ai_addrlen);
    address.bytes = at->ai_addrlen;
  }
  if (out.empty())
    return make_error(502, "connect_failed", "The host " + host + " has no address.");
  return out;
}

}  // namespace

void look_up_host(HostResolver resolver, const std::string& host, uint16_t port,
                  std::function<void(HostAddresses)> done) {
  if (auto numeric = ask_system(host, port, AI_NUMERICHOST); numeric)
    return done(std::move(numeric));
  if (under_way.fetch_add(1) >= kMostUnderWay) {
    --under_way;
    return done(make_error(503, "overloaded", "Too many names of hosts are being looked up."));
  }
  if (!resolver)
    resolver = [](const std::string& name, uint16_t of) { return ask_system(name, of, 0); };
  const auto shared = std::make_shared<std::function<void(HostAddresses)>>(std::move(done));
  try {
    std::thread([host, port, shared, resolver = std::move(resolver)] {
      (*shared)(resolver(host, port));
      --under_way;
    }).detach();
  } catch (const std::system_error& error) {
    --under_way;
    (*shared)(
        make_error(503, "overloaded", std::string("No thread for a look-up: ") + error.what()));
  }
}

HostAddresses look_up_host_until(const HostResolver& resolver, const std::string& host,
                                 uint16_t port, TimePoint until) {
  const auto answer = std::make_shared<std::promise<HostAddresses>>();
  auto future = answer->get_future();
  look_up_host(resolver, host, port,
               [answer](HostAddresses found) { answer->set_value(std::move(found)); });
  if (future.wait_until(until) != std::future_status::ready)
    return make_error(504, "connect_timeout",
                      "The host " + host + " could not be looked up in time.");
  return future.get();
}

}  // namespace tandem::kv
