// Follows the fleet file (fleet_file.h) while the router lives: it is read every second, and what
// changed is done. While it cannot be read or is wrong, the fleet stays as it is and the log says
// so.
#pragma once

#include <memory>

#include "base/result.h"
#include "router/router_core.h"

namespace tandem::router {

// Reads it once, now. Errors: 400 "bad_fleet_file", and those of WorkerRegistry::add.
Status follow_fleet_file(const std::shared_ptr<RouterCore>& core);

}  // namespace tandem::router
