// Sockets that workers killed by SIGKILL leave behind: "tandem-PID-EPOCH.sock".
#pragma once

#include <string>

namespace tandem::worker {

// Removes those of our own user in `folder` whose process is gone. Returns how many. Never fails.
int remove_stale_sockets(const std::string& folder);

}  // namespace tandem::worker
