// A transport that misbehaves on purpose, around another: for tests and --kv-fault.
//
// Each posted batch draws from a generator seeded by the plan, so a plan repeats as far as the
// order of posts does. Truncated and flipped batches end with kOk: finding that out is the reader's
// job (generations do not show it, digests do). What a transport promises, completion exactly once,
// the deadline and the fence, holds under every plan.
#pragma once

#include <memory>
#include <string>

#include "kv/transfer/transport.h"

namespace tandem::kv {

struct FaultPlan {
  uint64_t seed = 1;
  // Chances, per batch.
  double drop = 0;       // never arrives: ends at its deadline
  double delay = 0;      // by up to `longest_delay`
  double duplicate = 0;  // read twice
  double reorder = 0;    // its reads are shuffled, and it may be overtaken
  double truncate = 0;   // the last read ends early
  double flip = 0;       // one bit arrives wrong
  Duration longest_delay = std::chrono::milliseconds(20);
  int64_t die_at = -1;          // the post with this number (from 0) and all later ones: lost
  double bytes_per_second = 0;  // of the link, per peer; 0: as fast as it goes

  bool any() const;
};
// "seed=7,flip=0.01,rate=1e8,die_at=5,delay_ms=20" and the chances by name. Error 400.
Result<FaultPlan> parse_fault_plan(const std::string& text);

// `max_bytes_in_flight`: as of the transport inside.
std::unique_ptr<Transport> with_faults(std::unique_ptr<Transport> inside, const FaultPlan& plan,
                                       uint64_t max_bytes_in_flight);

}  // namespace tandem::kv
