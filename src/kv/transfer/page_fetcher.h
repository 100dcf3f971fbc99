// PageFetcher: how KV pages come over, whatever the transport. One layer of some pages at a time:
//
//   wait for its turn -> read the bytes -> read the pages' generations, after them, and compare
//     -> finish (digest, conversion; on the pool) -> answer
//
// The generation table is part of what the sender exposes, so the check is the receiver's own and
// works over any transport: if a page still has its generation after its bytes were read, it was
// not reused while they were. One more round trip for each batch, which others overlap.
//
// Owners (handoffs) take turns, batch by batch, and each peer has a bound of its own on batches in
// flight, so a long transfer or a slow peer does not hold the others up. Every fetch is answered
// within about `limit` of its last batch's turn. Bytes go straight into the page unless the step
// asks for a stage.
//
// Everything on the reactor's thread, but for PageStep::finish, which runs on the pool, and
// Remote::disconnect(), which may wait for a transport that waits for a dead peer: it runs on a
// thread of its own, and what only it can fence is answered after it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "device/shared_arena.h"
#include "kv/handoff/receive_handoff.h"
#include "kv/transfer/fetch_slots.h"
#include "kv/transfer/transport.h"
#include "net/reactor.h"
#include "net/work_pool.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

// Where a peer's pages are, and how to reach them.
struct FetchSource {
  std::shared_ptr<Remote> remote;
  Fence fence = Fence::kLocal;
  device::ArenaShape arena;  // sound
};

// What happens between arrival and use.
struct PageStep {
  bool staged = false;  // the bytes are not yet in the page's representation
  // For the `index`-th page of the request: `arrived` are its bytes as they were read, in the page
  // itself unless staged. Empty: nothing is left to do. Thread-safe.
  std::function<CopyResult(size_t index, std::span<const std::byte> arrived)> finish;
};

struct FetchRequest {
  uint64_t offset = 0;  // of the layer within a page of the source
  uint64_t bytes = 0;   // of the layer, as they arrive
  uint16_t view = 0;    // that it is read through (SourceViews); 0: as it is there
  std::vector<protocol::PageTag> source;
  std::vector<std::byte*> target;  // where the layer begins in the local page; unused when staged
  PageStep step;
};

struct FetchLimits {
  uint64_t batch_bytes = uint64_t{2} << 20;
  size_t batches_per_peer = 12;               // in flight
  Duration limit = std::chrono::seconds(10);  // for one batch
};

class PageFetcher {
 public:
  using OwnerId = uint64_t;
  static constexpr size_t kSlots = 64;  // batches in flight, of all peers
  // `first` and `count` of the request's pages; the answers to a request cover each page once.
  using Answer = std::function<void(size_t first, size_t count, CopyResult result)>;

  PageFetcher(net::Reactor& reactor, net::WorkPool& pool, FetchLimits limits);
  ~PageFetcher();  // after the transports' threads can call nothing any more, or the reactor's end

  // Memory for generations and stages, which reads go into: to be registered with the transports.
  std::span<std::byte> memory() const { return slots_.memory(); }

  void open_peer(uint64_t peer, FetchSource source);
  // Disconnects; what is in flight is answered (later). Idempotent.
  void close_peer(uint64_t peer);
  // After the reactor's end: returns when every peer that was closed is disconnected.
  void finish_closing();
  // `peer` has failed on the transport: its connection is to be closed.
  std::function<void(uint64_t peer)> on_peer_failed;

  void fetch(OwnerId owner, uint64_t peer, FetchRequest request, Answer answer);
  // What has not begun is answered with kFailed at once, the rest as it ends.
  void stop(OwnerId owner);

  // Bytes per second while something was on its way, over the last moments; 0: not known.
  double link_rate(uint64_t peer) const;
  size_t in_flight() const { return batches_.size(); }
  size_t waiting() const;
  size_t lost_slots() const { return slots_.lost(); }            // of batches that ended unfenced
  bool worn_out() const { return 2 * slots_.lost() >= kSlots; }  // it is to be made anew

 private:
  struct Request;
  struct Batch;
  struct Owner;
  struct Peer;
  void pump();
  bool pump_one(Owner& owner);
  TransferStatus post_data(const std::shared_ptr<Batch>& batch);
  void on_data(std::shared_ptr<Batch> batch, TransferStatus status);
  void on_generations(std::shared_ptr<Batch> batch, TransferStatus status);
  void run_step(const std::shared_ptr<Batch>& batch);
  void fail(const std::shared_ptr<Batch>& batch, TransferStatus status);
  void begin_closing(const std::shared_ptr<Peer>& peer);
  void on_closed(const std::shared_ptr<Peer>& peer);
  void end(const std::shared_ptr<Batch>& batch, CopyResult result);

  net::Reactor& reactor_;
  net::WorkPool& pool_;
  FetchLimits limits_;
  FetchSlots slots_;
  std::map<uint64_t, std::shared_ptr<Peer>> peers_;
  std::map<OwnerId, Owner> owners_;
  OwnerId last_served_ = 0;
  uint64_t next_batch_ = 1;
  std::map<uint64_t, std::shared_ptr<Batch>> batches_;  // in flight
  bool pumping_ = false;
  std::vector<std::shared_ptr<Peer>> closing_;  // not disconnected yet
  net::WorkPool closer_{1, 1024};
};

}  // namespace tandem::kv
