// PeerConnection: one authenticated connection between a decode worker (which dials) and a prefill
// worker on the same host, with the shared-memory transport: frames travel over a Unix socket, page
// bytes through the prefill worker's arena, which the decode worker maps read-only.
//
// Hello: the dialer sends HELLO with a nonce; the listener checks versions, lineage and layout and
// answers with its own HELLO and a proof of the shared secret over both nonces; the dialer checks
// it and sends its PROOF; only then does the listener pass its arena's descriptor. Two workers that
// do not fit refuse each other with a sentence.
//
// Fencing: closing the connection. The peer can only read, and compares generations after every
// copy, so once its connection is closed nothing it does can harm; what it read from reused pages
// it refuses itself.
//
// Everything on the reactor's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "device/shared_arena.h"
#include "net/reactor.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

struct PeerOptions {
  protocol::HelloFrame hello;  // this side's; nonce, proof and arena fields are filled in here
  std::string secret;
  Duration heartbeat = std::chrono::milliseconds(500);
  Duration silence = std::chrono::seconds(3);  // nothing received for so long: the peer is lost
  Duration connect = std::chrono::seconds(2);  // dialing and hello together
  size_t max_queued_bytes = size_t{64} << 20;  // beyond: the peer does not read, and is dropped
};

// Error 502 with the reason when `receiver` cannot take KV from `sender`. (The side that dials
// receives.)
Status check_compatible(const protocol::HelloFrame& sender, const protocol::HelloFrame& receiver);

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
  virtual const protocol::HelloFrame& peer() const = 0;
  virtual const device::RemoteArena* arena()
      const = 0;  // the dialer's view of the listener's pages
};

// Accepts dialing peers on the Unix socket `path` (created with mode 0600, removed by the
// destructor).
class PeerListener {
 public:
  using OnPeer = std::function<void(std::shared_ptr<PeerConnection>)>;
  static Result<std::unique_ptr<PeerListener>> listen(net::Reactor& reactor,
                                                      const std::string& path, PeerOptions options,
                                                      const device::SharedArena& arena,
                                                      OnPeer on_peer);
  virtual ~PeerListener() = default;
};

// `address` is "unix:/path". Errors: 502 "connect_failed", "handoff_protocol", "handoff_refused";
// 504 "connect_timeout".
boost::asio::awaitable<Result<std::shared_ptr<PeerConnection>>> dial_peer(net::Reactor& reactor,
                                                                          std::string address,
                                                                          PeerOptions options);

}  // namespace tandem::kv
