// The transports of one worker, made from its options: the table of all that there are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/shared_arena.h"
#include "kv/transfer/control_stream.h"
#include "kv/transfer/fault_transport.h"
#include "kv/transfer/peer_connection.h"
#include "kv/transfer/transport.h"

namespace tandem::kv {

struct TransportOptions {
  std::string choice = "auto";  // or the only one to use: "shm", "tcp", a module's name
  std::string module;           // a module's file to load; empty: none
  std::string module_settings;  // "key=value" lines
  int copy_threads = 1;         // of shared memory
  int streams = 4;              // of TCP, per peer
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;  // per peer
  FaultPlan faults;                                    // of what is read here
  std::shared_ptr<const SourceViews> views;  // of the arena, for the transports that serve any
};

struct TransportSet {
  std::vector<std::unique_ptr<Transport>> owned;
  std::vector<OfferedTransport> offered;  // in order of preference
};

// Makes the transports and exposes the arena through those that peers which dial `listen` (null:
// nobody does) can use. Errors: 500 "transport_module", "transport_unknown" and the transports'
// own.
Result<TransportSet> make_transports(const TransportOptions& options, const PeerAddress* listen,
                                     const TlsContext* tls, const device::SharedArena& arena);

}  // namespace tandem::kv
