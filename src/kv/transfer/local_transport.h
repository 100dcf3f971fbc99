// The two transports of one host, "process" (both workers in one process) and "shm" (the sender's
// segment, mapped read-only): a read is a memcpy by threads of the receiver. Fence: local.
//
// The shared-memory receiver learns of the owner's death from the kernel (RemoteSegment), not from
// the owner. A stopped owner does not matter: its memory can still be read.
#pragma once

#include <memory>

#include "kv/transfer/transport.h"

namespace tandem::kv {

struct LocalTransportOptions {
  int threads = 1;  // that copy, of all peers together; one usually saturates a memory channel
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;  // per peer
};

std::unique_ptr<Transport> make_in_process_transport(LocalTransportOptions options);
// expose() wants the file of a device::SharedArena.
std::unique_ptr<Transport> make_shared_memory_transport(LocalTransportOptions options);

}  // namespace tandem::kv
