// The TCP transport: reads over several data streams, for workers on different hosts. Fence: local.
//
// The sender listens on a port of its own; its descriptor is that port and a random epoch, its host
// that of the control connection. A data stream proves that it belongs to an admitted control
// connection (tcp_wire.h), and over "tls" both ends also show certificates. Large ranges leave by
// sendfile from the arena's memory file, without a copy on the sending side (not over TLS). Reads
// through a view are turned by the data stream's thread, some pieces at a time.
//
// Generations are checked by the receiver, by a second small read (page_fetcher.h), rather than by
// the sender around its own copy: sendfile passes the pages themselves on, so their bytes may still
// change after the sender has looked.
#pragma once

#include <memory>
#include <string>

#include "kv/transfer/host_lookup.h"
#include "kv/transfer/transport.h"

namespace tandem::kv {

class TlsContext;

struct TcpTransportOptions {
  std::string host = "127.0.0.1";                      // to listen on, when memory is exposed
  uint16_t port = 0;                                   // 0: the system picks
  int streams = 4;                                     // per peer that is read from
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;  // per peer
  bool use_file = true;             // else large ranges are copied into the socket
  const TlsContext* tls = nullptr;  // then it is named "tls"; outlives the transport
  HostResolver resolver = {};       // of peers' names
};

std::unique_ptr<Transport> make_tcp_transport(TcpTransportOptions options);

}  // namespace tandem::kv
