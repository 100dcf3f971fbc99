// Transports loaded at run time through the C interface of transport_abi.h.
//
// A module's functions are called by one thread, which the adapter owns: it carries posts over,
// polls, and waits while there is nothing to do. The adapter does not trust the module's clock: a
// batch that the module never completes ends with kTimeout a second after its limit.
#pragma once

#include <memory>
#include <string>

#include "kv/transfer/transport.h"
#include "kv/transfer/transport_abi.h"

namespace tandem::kv {

struct ModuleOptions {
  std::string settings;                                // "key=value" lines for the module
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;  // per peer
};

// Loads the shared library at `path`, which stays loaded. Error 500 "transport_module" when it
// cannot be loaded, is none of ours, speaks another version or cannot start.
Result<std::unique_ptr<Transport>> load_transport_module(const std::string& path,
                                                         const ModuleOptions& options);
// The same for a module that is linked in. `where` is for messages.
Result<std::unique_ptr<Transport>> adapt_transport_module(const tandem_transport_v1* module,
                                                          const std::string& where,
                                                          const ModuleOptions& options);

}  // namespace tandem::kv
