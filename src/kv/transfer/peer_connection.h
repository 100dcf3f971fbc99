// PeerConnection: one authenticated connection between a decode worker (which dials) and a prefill
// worker. Frames travel over it; page bytes are read by the dialer through a Transport that the two
// agree on in HELLO.
//
// Hello: the dialer sends HELLO with a nonce and the transports it can use; the listener checks
// versions, lineage and layout, chooses the first of its own transports that the dialer has, and
// answers with its HELLO, the descriptor of its arena and a proof of the shared secret over both
// nonces; the dialer checks it and sends its PROOF; the listener admits it to the arena and says so
// (PROOF; over shared memory with the arena's file); the dialer's transport connects. The key of
// its data streams is derived from both nonces and the secret. Two workers that do not fit refuse
// each other with a sentence.
//
// Fencing: closing the connection, on either side. The listener's transport cuts the peer off. The
// peer can only read, and compares generations after every copy, so what it read from reused pages
// it refuses itself.
//
// Everything on the reactor's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "device/shared_arena.h"
#include "kv/transfer/control_stream.h"
#include "kv/transfer/transport.h"
#include "net/reactor.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

// A transport of this worker. It outlives connections.
struct OfferedTransport {
  Transport* transport = nullptr;
  std::optional<Descriptor> exposed;  // of its arena, if peers may read through it
};

struct PeerOptions {
  protocol::HelloFrame hello;  // this side's; nonce, proof and what follows are filled in here
  std::string secret;
  std::vector<OfferedTransport> transports;  // in order of preference
  const TlsContext* tls = nullptr;           // for "tls:" addresses
  HostResolver resolver = {};                // of their hosts' names
  Duration heartbeat = std::chrono::milliseconds(500);
  Duration silence = std::chrono::seconds(3);  // nothing received for so long: the peer is lost
  Duration connect = std::chrono::seconds(2);  // dialing and hello together
  size_t max_queued_bytes = size_t{64} << 20;  // beyond: the peer does not read, and is dropped
};

// Error 502 with the reason when `receiver` cannot take KV from `sender`. (The side that dials
// receives.)
Status check_compatible(const protocol::HelloFrame& sender, const protocol::HelloFrame& receiver);

// The first of `mine` that `theirs` (names with commas between) has and that works between the two:
// "process" within one process, what passes a file over a Unix socket only. Null: none.
const OfferedTransport* choose_transport(const std::vector<OfferedTransport>& mine,
                                         const std::string& theirs, bool same_process,
                                         bool unix_socket);

class PeerConnection {
 public:
  virtual ~PeerConnection() = default;
  using OnFrame = std::function<void(protocol::HandoffFrame)>;
  using OnClose = std::function<void()>;

  // Delivers frames (heartbeats excluded) until the connection closes, then calls `on_close` once.
  // The connection keeps itself alive meanwhile.
  virtual void start(OnFrame on_frame, OnClose on_close) = 0;
  virtual void send(const protocol::HandoffFrame& frame) = 0;  // queued; dropped when closed
  virtual void close() = 0;  // at once; on_close follows from the reactor
  // `converted` is what the two have agreed on: pages travel as the receiver stores them.
  virtual const protocol::HelloFrame& peer() const = 0;
  virtual const Transport& transport() const = 0;
  // The dialer's only: the listener's exposed arena, and how it is laid out.
  virtual const std::shared_ptr<Remote>& remote() const = 0;
  virtual device::ArenaShape arena() const = 0;
};

// Accepts dialing peers at `address` (a Unix socket gets mode 0600 and is removed at the end).
class PeerListener {
 public:
  using OnPeer = std::function<void(std::shared_ptr<PeerConnection>)>;
  static Result<std::unique_ptr<PeerListener>> listen(net::Reactor& reactor,
                                                      const PeerAddress& address,
                                                      PeerOptions options,
                                                      const device::ArenaShape& arena,
                                                      OnPeer on_peer);
  virtual ~PeerListener() = default;
  virtual uint16_t port() const = 0;  // 0: a Unix socket
};

// Errors: 502 "connect_failed", "handoff_protocol", "handoff_refused"; 504 "connect_timeout".
boost::asio::awaitable<Result<std::shared_ptr<PeerConnection>>> dial_peer(net::Reactor& reactor,
                                                                          std::string address,
                                                                          PeerOptions options);

}  // namespace tandem::kv
