// ReceiveHandoff: the decode side of one attempt, as a pure state machine (DESIGN §4, I3).
//
//   OPEN -> OFFER -> reserve pages -> GRANT (or BUSY) -> PUSH: copy and check -> COMMIT: coverage
//   proven -> ACK
//
// Blocks become usable only when every (layer, block) that the manifest names was copied exactly
// once and its source generation was unchanged after the copy. Only this side writes its own pages,
// so an abort releases them at once; the sender is told, and told again when it aborts first. Not
// thread-safe. Events return actions in the order in which they must happen.
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
struct CopyPages {  // answer with on_copied; pages[i] of the sender -> block first_block + i here,
                    // one layer, in the page of its group
  uint32_t layer;
  uint32_t first_block;
  std::vector<protocol::PageTag> source;
};
// The blocks are proven. Mark them, publish the full ones, start the sequence, then answer with
// on_started.
struct StartSequence {
  std::vector<protocol::ScoredToken> first_tokens;
  uint32_t prompt_tokens;
  uint32_t cached_tokens;
};
struct ReleasePages {};   // drop everything that was reserved
struct ReceiveFinished {  // exactly once
  std::optional<Error> error;
};
struct SendToPeer {
  protocol::HandoffFrame frame;
};
using ReceiveAction =
    std::variant<SendToPeer, ReservePages, CopyPages, StartSequence, ReleasePages, ReceiveFinished>;
using ReceiveActions = std::vector<ReceiveAction>;

class ReceiveHandoff {
 public:
  ReceiveHandoff(std::string id, uint32_t attempt, SendHandoff::Shape shape,
                 HandoffTimeouts timeouts);

  ReceiveActions open(TimePoint now);
  ReceiveActions on_offer(const protocol::OfferFrame& frame, TimePoint now);
  // Pages exist for all that is live at the prompt's end; in group g those before block
  // first_missing[g] were here already.
  ReceiveActions on_reserved(std::vector<uint32_t> first_missing, TimePoint now);
  ReceiveActions on_no_room(const Error& error);
  ReceiveActions on_push(const protocol::PushFrame& frame, TimePoint now);
  ReceiveActions on_copied(uint32_t layer, uint32_t first_block, uint32_t count, bool intact);
  ReceiveActions on_commit(const protocol::CommitFrame& frame, TimePoint now);
  ReceiveActions on_started();
  ReceiveActions on_abort(const protocol::AbortFrame& frame);
  ReceiveActions on_peer_lost();
  ReceiveActions on_cancel(const Error& error);
  ReceiveActions on_time(TimePoint now);

  bool finished() const { return state_ == State::kFinished; }
  const protocol::HandoffKey& key() const { return key_; }

 private:
  enum class State : uint8_t { kOpening, kReserving, kReceiving, kStarting, kFinished };
  bool is_mine(const protocol::HandoffKey& key) const { return key == key_; }
  uint32_t first_missing_of(uint32_t layer) const {
    return first_missing_[static_cast<size_t>(shape_.layer_groups[layer])];
  }
  // Ends the attempt; tells the peer unless it is gone or knows already.
  ReceiveActions fail(const Error& error, bool tell_peer);

  protocol::HandoffKey key_;
  SendHandoff::Shape shape_;
  HandoffTimeouts timeouts_;
  State state_ = State::kOpening;
  bool reserved_ = false;
  uint32_t blocks_ = 0;
  uint64_t tokens_ = 0;
  std::vector<uint32_t> first_missing_;  // by group
  std::vector<bool> requested_;          // [layer][block]: a copy was asked for
  uint64_t covered_ = 0;                 // (layer, block) pairs copied intact
  TimePoint deadline_ = TimePoint::max();
};

}  // namespace tandem::kv
