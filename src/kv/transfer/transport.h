// Transport: moves KV bytes between workers by one-sided reads of the worker that receives.
//
//   sender:   expose(memory) -> descriptor --(HELLO)--> receiver: connect(descriptor) -> Remote
//   receiver: Remote::post({offset in the sender's memory, local address, bytes} ...) -> done
//
// Nobody writes into another process's memory, so a peer that was stopped, restarted or cut off can
// at worst read bytes that change meanwhile; the reader finds out by reading the pages' generations
// afterwards (page_reader.h). The sender's control plane (PeerConnection) says who may attach:
// both ends derive a key from its handshake, admit() lets its holder in and expel() cuts it off.
//
// Threads: every function may be called from any thread; none blocks but disconnect(), expel() and
// the destructors, and those only until the transport's own threads have let go of the memory.
// Completions run on a thread of the transport or inside disconnect(): they must be short and must
// not call the transport, nor hold the last reference to a Remote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::kv {

// When it is sure that a read writes no more into local memory.
enum class Fence : uint8_t {
  kLocal,       // when its batch has completed, whatever the status
  kConnection,  // when its batch is kOk, or once disconnect() has returned
  kNone,  // when its batch is kOk; otherwise its pages must be quarantined until the process ends
};

enum class TransferStatus : uint8_t {
  kOk,       // every byte is there
  kFull,     // post only: bytes in flight are at their bound; again after a completion
  kLost,     // the peer is gone: only disconnect() is left to do
  kTimeout,  // the batch's deadline passed
  kInvalid,  // a range outside the peer's exposed memory, or nothing to read
  kFailed,   // anything else
};
// For a person: 502 "transfer_lost", 504 "transfer_timeout" and so on; not of kOk.
Error transfer_error(TransferStatus status, std::string_view transport);

struct Read {
  uint64_t offset = 0;        // in the peer's exposed memory
  std::byte* into = nullptr;  // in registered memory
  uint64_t bytes = 0;         // that arrive
  uint16_t view = 0;          // of SourceViews; 0: the bytes as they are
};
// True when there is something to read and all of it lies in `exposed` bytes; `total` is its sum.
// Reads through a view are refused unless `views`.
bool reads_fit(std::span<const Read> reads, uint64_t exposed, uint64_t& total, bool views = false);

// Other forms in which pieces of exposed memory can be read: each view, a number from 1 on, turns a
// piece into another form as it leaves. What the numbers mean is between the two workers; a
// transport only knows the sizes. Thread-safe.
class SourceViews {
 public:
  struct Shape {
    uint64_t source_bytes = 0;  // of a piece, in memory
    uint64_t bytes = 0;  // of what leaves, a multiple of kAlignment; 0: there is no such view
  };
  static constexpr uint64_t kAlignment = 8;  // of pieces' offsets, and of what write() is given
  virtual ~SourceViews() = default;
  virtual Shape shape(uint16_t view) const = 0;
  // Writes the piece at `source`, whose bytes may change meanwhile, as `view` has it.
  virtual void write(uint16_t view, const std::byte* source, std::byte* target) const = 0;
};

// What makes exposed memory reachable. Travels in HELLO; `file`, when there is one, as a passed
// descriptor, so only over a Unix socket.
struct Descriptor {
  std::string bytes;
  int file = -1;  // of expose(): the transport's; of connect(): taken over by the callee
};
inline constexpr size_t kMaxDescriptorBytes = 64 << 10;

// Of one control connection: both ends know it, and nobody else.
struct PeerKey {
  std::string id;   // names the connection
  std::string key;  // 32 bytes; proves to be its other end
};

// One peer's exposed memory, as seen from here. Destruction disconnects.
class Remote {
 public:
  using Done = std::function<void(TransferStatus)>;
  virtual ~Remote() = default;

  // kOk: accepted, and `done` will be called exactly once, at the latest about `limit` from now.
  // Anything else: refused as a whole, `done` is never called. The spans need not live longer than
  // the call; the memory read into must, as the transport's fence says.
  virtual TransferStatus post(std::span<const Read> reads, Duration limit, Done done) = 0;

  // What is in flight completes with kLost before this returns, and (unless the fence is kNone)
  // nothing is written into local memory afterwards. Idempotent.
  virtual void disconnect() = 0;

  virtual uint64_t bytes_in_flight() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;  // "shm", "tcp", ...: what HELLO says
  virtual Fence fence() const = 0;
  virtual bool within_process() const { return false; }  // reaches no other process
  virtual bool passes_file() const { return false; }     // its descriptors come with a file
  // Where the sending side copies anyway, what it exposes can also be read through views. Before
  // expose(). False: this transport has no such thing.
  virtual bool serve_views(const std::shared_ptr<const SourceViews>& /*views*/) { return false; }
  virtual bool serves_views() const { return false; }

  // Memory that admitted peers may read; it outlives the transport. `file` maps the same bytes from
  // its start on (-1: none), which some transports need or use. Once.
  virtual Result<Descriptor> expose(std::span<const std::byte> memory, int file) = 0;
  // Memory that reads may go into, while this lives.
  virtual Status register_local(std::span<std::byte> memory) = 0;

  // `host`: of the peer's control address, for descriptors that leave it open. `done` is called
  // once, inside this call or later, at the latest about `limit` from now.
  using Connected = std::function<void(Result<std::shared_ptr<Remote>>)>;
  virtual void connect(Descriptor descriptor, const PeerKey& key, const std::string& host,
                       Duration limit, Connected done) = 0;
  // Returns when no connect() is under way, so that none calls back any more.
  virtual void finish_connecting() {}

  // The peer with this key may read exposed memory, until expel(), after whose return it does not
  // any more. Transports without connections of their own rely on the reader's own checks.
  virtual void admit(const PeerKey& /*key*/) {}
  virtual void expel(const std::string& /*id*/) {}
};

}  // namespace tandem::kv
