// ReserveQueue: handoffs that wait for memory on the receiving side, in their order. Nobody
// overtakes the first; each leaves when it is served, when its time has passed, or when it is
// abandoned, at once. Pure; one owner thread (the engine's).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "kv/manager/kv_manager.h"

namespace tandem::kv {

class ReserveQueue {
 public:
  struct Waiting {
    SequenceId id = 0;
    std::vector<int32_t> tokens;
    KvScope scope;
    TimePoint until;  // to be served by
  };
  struct Served {
    SequenceId id = 0;
    std::optional<KvManager::Reservation> reservation;  // nothing: its time has passed
  };

  // `kv` outlives the queue.
  explicit ReserveQueue(KvManager& kv) : kv_(kv) {}

  void add(Waiting waiting) { waiting_.push_back(std::move(waiting)); }
  // False when it does not wait here (any more).
  bool abandon(SequenceId id);
  // Whoever is served or late now. The pages for `kept_tokens` stay obtainable: handoffs do not
  // overtake what waits in the scheduler, or a stream of them would starve it.
  std::vector<Served> serve(TimePoint now, int32_t kept_tokens);
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }

 private:
  KvManager& kv_;
  std::deque<Waiting> waiting_;
};

}  // namespace tandem::kv
