// ReceiveHandoff: the decode side of one attempt, as a pure state machine (DESIGN §4, I3).
//
//   OPEN -> OFFER -> reserve pages -> GRANT (or BUSY) -> PUSH: copy and check -> COMMIT: coverage
//   proven -> ACK
//
// Blocks become usable only when every (layer, block) that the manifest names was copied exactly
// once and its source generation was unchanged after the copy. Copies may take long and may still
// be under way when the attempt ends, whoever ends it: then its outcome is told at once, but the
// pages are released, and the sender is told that nobody reads its pages any more, only when the
// last copy is answered. The driver owes every copy an answer within bounded time. Not thread-safe.
// Events return actions in the order in which they must happen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "kv/handoff/send_handoff.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

struct ReservePages {  // answer with on_reserved or on_no_room
  std::vector<int32_t> tokens;
  std::string salt;
  std::string adapter = {};
};
struct CopyPages {  // answer with on_copied, in parts if that is easier; source[i] of the sender ->
                    // block first_block + i here, one layer, in the page of its group
  uint32_t layer;
  uint32_t first_block;
  std::vector<protocol::PageTag> source;
  std::vector<uint64_t> digests = {};  // what each part's bytes must have; empty: not known
};
// The blocks are proven. Mark them, publish the full ones, start the sequence, then answer with
// on_started.
struct StartSequence {
  std::vector<protocol::ScoredToken> first_tokens;
  uint32_t prompt_tokens;
  uint32_t cached_tokens;
};
struct StopCopies {};  // the outcome does not matter any more; still answer each with on_copied
// Drop everything that was reserved, or asked for and not reserved yet. `may_be_written`: a copy
// that could not be stopped may still write into the pages, so their writers must stay.
struct ReleasePages {
  bool may_be_written = false;
};
struct ReceiveFinished {  // exactly once
  std::optional<Error> error;
};
struct SendToPeer {
  protocol::HandoffFrame frame;
};
using ReceiveAction = std::variant<SendToPeer, ReservePages, CopyPages, StopCopies, StartSequence,
                                   ReleasePages, ReceiveFinished>;
using ReceiveActions = std::vector<ReceiveAction>;

// How a copy ended. After all but the last nothing writes into the pages any more.
enum class CopyResult : uint8_t {
  kIntact,    // every byte is there, and the source pages had their generations afterwards
  kStale,     // a source page was reused meanwhile
  kCorrupt,   // the bytes are not those that the sender's digest describes
  kFailed,    // the transport failed, timed out or was stopped
  kUnfenced,  // as kFailed, but the transport cannot say that it has stopped writing
};

// Switches off one protection each, for tests that prove the protection is needed.
struct ReceiveFaults {
  bool release_while_copying = false;
  bool accept_any_copy = false;  // stale, failed and missing ones count as covered
};

class ReceiveHandoff {
 public:
  ReceiveHandoff(std::string id, uint32_t attempt, SendHandoff::Shape shape,
                 HandoffTimeouts timeouts, HandoffRanks ranks = {}, ReceiveFaults faults = {});

  // When pages travel in another size than they have here: what the sender's counts of bytes mean.
  // Before open().
  void set_source_page_bytes(uint64_t bytes) { shape_.page_bytes = bytes; }

  ReceiveActions open(TimePoint now);
  ReceiveActions on_offer(const protocol::OfferFrame& frame, TimePoint now);
  // Pages exist for all that is live at the prompt's end; in group g those before block
  // first_missing[g] were here already.
  ReceiveActions on_reserved(std::vector<uint32_t> first_missing, TimePoint now);
  ReceiveActions on_no_room(const Error& error);
  ReceiveActions on_push(const protocol::PushFrame& frame, TimePoint now);
  // `count` of the blocks whose copy was asked for, in layer `layer` from `first_block` on.
  ReceiveActions on_copied(uint32_t layer, uint32_t first_block, uint32_t count, CopyResult result,
                           TimePoint now);
  ReceiveActions on_commit(const protocol::CommitFrame& frame, TimePoint now);
  ReceiveActions on_started();
  ReceiveActions on_abort(const protocol::AbortFrame& frame);
  ReceiveActions on_peer_lost();
  ReceiveActions on_cancel(const Error& error);
  ReceiveActions on_time(TimePoint now);

  // ReceiveFinished was emitted; copies may still be under way.
  bool finished() const { return state_ >= State::kDraining; }
  // Nothing more will happen.
  bool idle() const { return state_ == State::kFinished; }
  const protocol::HandoffKey& key() const { return key_; }

 private:
  enum class State : uint8_t { kOpening, kReserving, kReceiving, kStarting, kDraining, kFinished };
  bool is_mine(const protocol::HandoffKey& key) const { return key == key_; }
  uint32_t first_missing_of(uint32_t layer) const {
    return first_missing_[static_cast<size_t>(shape_.layer_groups[layer])];
  }
  // Ends the attempt; tells the peer unless it is gone or knows already.
  ReceiveActions fail(const Error& error, bool tell_peer);
  void settle(ReceiveActions& actions);  // once no copy is under way
  ReceiveActions check_manifest();

  protocol::HandoffKey key_;
  SendHandoff::Shape shape_;
  HandoffTimeouts timeouts_;
  HandoffRanks ranks_;
  ReceiveFaults faults_;
  State state_ = State::kOpening;
  bool releases_ = false;  // failed with pages, or waiting for some
  uint32_t blocks_ = 0;
  uint64_t tokens_ = 0;
  std::vector<uint32_t> first_missing_;  // by group
  enum class Block : uint8_t { kMissing, kCopying, kCovered };
  std::vector<Block> coverage_;                   // [layer][block]
  uint64_t covered_ = 0;                          // (layer, block) pairs copied intact
  uint64_t copying_ = 0;                          // and whose copy is under way
  bool may_be_written_ = false;                   // a copy ended unfenced
  std::optional<protocol::CommitFrame> commit_;   // came before the last copy was done
  std::vector<protocol::HandoffFrame> farewell_;  // to be said when the last copy is answered
  TimePoint deadline_ = TimePoint::max();
  TimePoint renewed_{};  // the last sign of life that this side gave after COMMIT
};

}  // namespace tandem::kv
