// Looking a host's name up with a deadline. The system's resolver has none of its own that can be
// set, and cannot be called back: a look-up that is late goes on on a thread of its own, which
// touches nothing of anybody's, and its answer is thrown away. Numeric addresses need no thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::kv {

struct HostAddress {
  sockaddr_storage name{};
  socklen_t bytes = 0;
};
using HostAddresses = Result<std::vector<HostAddress>>;  // at least one

// Empty: the system's. Any thread may call it.
using HostResolver = std::function<HostAddresses(const std::string& host, uint16_t port)>;

// `done` is called once: inside this call for numeric addresses and refusals, else on another
// thread, whenever the resolver answers. Errors: 502 "connect_failed"; 503 "overloaded" when too
// many look-ups are under way.
void look_up_host(HostResolver resolver, const std::string& host, uint16_t port,
                  std::function<void(HostAddresses)> done);

// Waits for the answer; 504 "connect_timeout" when there is none by `until`.
HostAddresses look_up_host_until(const HostResolver& resolver, const std::string& host,
                                 uint16_t port, TimePoint until);

}  // namespace tandem::kv
