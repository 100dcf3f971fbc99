// SendHandoff: the prefill side of one handoff, as a pure state machine (DESIGN §4).
//
//   registered -> admitted (pages known) -> OPEN -> OFFER -> GRANT -> PUSH, layer by layer ->
//   COMMIT -> ACK -> done
//
// A block has a page for each page group. Of a group with a window only the blocks that are live at
// the prompt's end are sent; their pages become known as the passes that fill them are planned.
//
// Readers protect the source pages: they are taken when a peer is granted its copy and dropped only
// by its ACK, by its ABORT_ACK with the same (handoff, attempt, nonce), or once the peer is fenced.
// A peer of several ranks acknowledges once for each: a rank counts once, however often it speaks.
// Time alone never drops them: a deadline that passes makes this side abort and then fence. When
// the peer is busy or dies, the blocks stay under a lease and another worker may dial with the next
// attempt. Not thread-safe. Events return actions in the order in which they must happen.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

using PeerId = uint64_t;  // a connection; a peer that reconnects is another one

struct HandoffTimeouts {
  Duration lease = std::chrono::seconds(30);    // blocks kept for a peer that has not dialed
  Duration grant = std::chrono::seconds(30);    // OFFER until GRANT or BUSY
  Duration ack = std::chrono::seconds(30);      // COMMIT, or a renewal, until ACK
  Duration renew = std::chrono::seconds(5);     // between the receiver's signs that it copies
  Duration drain = std::chrono::seconds(1);     // ABORT until ABORT_ACK, then the peer is fenced
  Duration reserve = std::chrono::seconds(20);  // receiver: for memory to come free, then BUSY
  Duration offer = std::chrono::seconds(120);  // receiver: OPEN until OFFER (prefill may be queued)
  Duration progress = std::chrono::seconds(30);  // receiver: longest silence between PUSH frames
};

// When to OFFER: as late as lets the transfer end with the prefill, so that memory does not idle
// through a long prefill. Unknown rates (0) mean at once.
struct OfferEstimate {
  double prefill_tokens_per_second = 0;
  double link_bytes_per_second = 0;
  double margin_seconds = 0.25;
};
bool should_offer(int64_t remaining_tokens, uint64_t total_bytes, const OfferEstimate& estimate);

// Actions.
struct SendFrame {
  PeerId peer;
  protocol::HandoffFrame frame;
};
struct AcquireReaders {
  std::vector<protocol::PageTag> pages;
};
struct ReleaseReaders {
  std::vector<protocol::PageTag> pages;
};
struct FencePeer {  // close the connection and forget the peer; readers that follow in the same
                    // list are then safe to drop
  PeerId peer;
};
// The leg's outcome; the sequence's ownership of its pages is dropped. Comes exactly once.
struct SendFinished {
  std::optional<Error> error;
  uint64_t bytes_sent = 0;
  uint32_t blocks_sent = 0;
};
using SendAction = std::variant<SendFrame, AcquireReaders, ReleaseReaders, FencePeer, SendFinished>;
using SendActions = std::vector<SendAction>;

// State of one attempt, and of one that was given up and waits for its acknowledgement.
struct SendAttempt {
  PeerId peer = 0;
  protocol::HandoffKey key;
  uint64_t page_bytes = 0;  // as they travel
  bool offered = false;
  bool granted = false;
  bool committed = false;
  uint64_t owing = 0;                 // bit r: rank r may be reading, its acknowledgement is owed
  std::vector<uint32_t> first_block;  // per group
  std::vector<uint32_t> pushed;       // per layer: blocks before this one were sent
  std::vector<protocol::PageTag> readers;
  uint32_t readers_until = 0;  // blocks before this one have their readers
  TimePoint deadline;
};
struct SendDrain {
  PeerId peer;
  protocol::HandoffKey key;
  uint64_t owing = 0;
  std::vector<protocol::PageTag> readers;
  TimePoint deadline;
};

// Which of the receiver's ranks speaks.
struct HandoffRanks {
  uint32_t rank = 0;
  uint32_t count = 1;
};

// Switches off one protection each, for tests that prove the protection is needed.
struct SendFaults {
  bool time_frees = false;    // an abort's deadline drops readers without fencing the peer
  bool ignore_nonce = false;  // acknowledgements of earlier attempts count
  bool ignore_abort = false;  // an abort drops its readers at once
};

// What both sides of a transfer must agree on.
struct HandoffShape {
  int32_t block_tokens = 0;
  uint64_t page_bytes = 0;
  std::vector<int32_t> windows{0};    // by page group; 0: attends to everything
  std::vector<int32_t> layer_groups;  // by layer of the model

  uint32_t layers() const { return static_cast<uint32_t>(layer_groups.size()); }
  uint32_t groups() const { return static_cast<uint32_t>(windows.size()); }
  uint32_t blocks(size_t tokens) const;
  // By group: the first block that is live after `tokens` tokens.
  std::vector<uint32_t> first_live(size_t tokens) const;
  // Pages of the blocks from `first` (by group) to `blocks`.
  uint64_t pages(const std::vector<uint32_t>& first, uint32_t blocks) const;
};

class SendHandoff {
 public:
  using Shape = HandoffShape;
  SendHandoff(std::string id, Shape shape, HandoffTimeouts timeouts, OfferEstimate estimate,
              TimePoint now, SendFaults faults = {});

  // The sequence is admitted; the first `cached_tokens` are final in every layer. `pages`: see
  // on_pages.
  SendActions on_admitted(std::vector<int32_t> prompt, std::string salt, std::string adapter,
                          std::vector<protocol::PageTag> pages, int32_t cached_tokens,
                          TimePoint now);
  // Pages of the blocks that follow those known so far, [block][group]; page -1 where a window has
  // passed.
  SendActions on_pages(std::span<const protocol::PageTag> pages, TimePoint now);
  // Layer `layer` is final for every token before `end_token`.
  SendActions on_progress(int32_t layer, int32_t end_token, TimePoint now);
  SendActions on_prefill_done(std::vector<protocol::ScoredToken> first_tokens, TimePoint now);

  // `page_bytes`: of a page as it travels to this peer; 0: as it is here.
  SendActions on_open(PeerId peer, uint32_t attempt, uint64_t nonce, TimePoint now,
                      uint64_t page_bytes = 0);
  SendActions on_grant(PeerId peer, const protocol::GrantFrame& frame, TimePoint now);
  SendActions on_busy(PeerId peer, const protocol::BusyFrame& frame, TimePoint now);
  // Before ACK: the receiver still copies (I8).
  void on_renew(PeerId peer, const protocol::RenewFrame& frame, TimePoint now);
  SendActions on_ack(PeerId peer, const protocol::AckFrame& frame, TimePoint now);
  SendActions on_abort(PeerId peer, const protocol::AbortFrame& frame, TimePoint now);
  SendActions on_abort_ack(PeerId peer, const protocol::AbortAckFrame& frame, TimePoint now);
  SendActions on_peer_lost(PeerId peer,
                           TimePoint now);  // the connection is closed: the peer is fenced
  SendActions on_cancel(const Error& error, TimePoint now);
  SendActions on_time(TimePoint now);

  // Nothing more will happen: finished and every reader dropped.
  bool idle() const { return finished_ && drains_.empty() && !attempt_; }
  bool finished() const { return finished_; }

 private:
  bool is_current(PeerId peer, const protocol::HandoffKey& key) const;
  void advance(SendActions& actions, TimePoint now);
  void push(SendActions& actions);
  void acquire(SendActions& actions);
  uint32_t final_blocks(uint32_t layer) const;
  uint32_t known_blocks() const { return static_cast<uint32_t>(pages_.size()) / shape_.groups(); }
  const protocol::PageTag& page(uint32_t block, uint32_t group) const {
    return pages_[size_t{block} * shape_.groups() + group];
  }
  bool names(const protocol::HandoffKey& key, const protocol::HandoffKey& said) const;
  // Stops the current attempt; its readers wait for the acknowledgements that are owed.
  void abort_attempt(SendActions& actions, const Error& error, TimePoint now);
  void end_attempt(SendActions& actions);  // the peer has acknowledged or is fenced
  void finish(SendActions& actions, std::optional<Error> error);

  std::string id_;
  Shape shape_;
  HandoffTimeouts timeouts_;
  OfferEstimate estimate_;
  SendFaults faults_;
  bool admitted_ = false;
  bool done_ = false;
  bool finished_ = false;
  std::vector<int32_t> prompt_;
  std::string salt_;
  std::string adapter_;
  std::vector<protocol::PageTag> pages_;  // [block][group], of the blocks known so far
  uint32_t blocks_ = 0;
  std::vector<uint32_t> first_live_;  // by group
  int32_t cached_tokens_ = 0;
  std::vector<int32_t> final_tokens_;  // per layer
  std::vector<protocol::ScoredToken> first_tokens_;
  std::optional<SendAttempt> attempt_;
  uint32_t last_attempt_ = 0;
  std::vector<SendDrain> drains_;
  TimePoint lease_until_;
  uint64_t bytes_sent_ = 0;
  uint32_t blocks_sent_ = 0;
};

}  // namespace tandem::kv
