// Plan: everything that will happen to one simulated deployment: its shape, its requests, its
// faults. Drawn from a seed, or written by hand for a regression.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::sim {

// One protection switched off, to see that the checks notice. Names as on the command line.
enum class Break : uint8_t {
  kNone,
  kI1,        // pages return to the free list under readers and writers, aborts wait for nobody
  kReaders,   // I1: an abort drops the sender's readers at once
  kDrain,     // I1: the receiver gives its pages back while they are still being written
  kTime,      // I1: readers end by time alone, without fencing
  kNonce,     // I1: acknowledgements of earlier attempts count
  kI2,        // generations are not compared, neither by the pool nor by the reader
  kI3,        // blocks are published before they are proven
  kCoverage,  // I3: failed and missing copies count as covered
  kI5,        // the adapter is no part of a block's identity
};
Result<Break> parse_break(std::string_view name);
std::string_view break_name(Break which);
std::vector<std::string> break_names();  // without "none"

// Moments at which faults can be aimed: just after the thing named happened.
enum class Moment : uint8_t {
  kNever,  // `at` says when
  kOpened,
  kOffered,
  kReserving,
  kGranted,
  kPushed,
  kCopyBegan,
  kCopyHalf,  // half of a page was read
  kCommitted,
  kStarted,
  kAcked,
  kAborted,
  kFirstToken,
};
std::string_view moment_name(Moment moment);

inline constexpr int kThere = -1;

struct Fault {
  enum class Kind : uint8_t {
    kCrash,      // of `node`, which starts again after `time`
    kFreeze,     // of `node` for `time`
    kPartition,  // between `node` and `other` for `time`
    kReset,      // of the connections between `node` and `other`
    kSlow,       // between `node` and `other` for `time`: a hundred times the delay
    kAbort,      // of `request` by its client
    kFailCopy,   // of the copy that is under way or comes next at `node`
  };
  Kind kind = Kind::kCrash;
  Duration at{};                   // without a moment
  Moment moment = Moment::kNever;  // the `nth` time that it happens anywhere
  int nth = 1;
  int node = 0;  // kThere: where the moment happened
  int other = 0;
  int request = 0;
  Duration time{};
  bool silent = false;  // crash: of the whole machine, so that nobody is told
};

struct PlannedRequest {
  Duration at{};
  std::vector<int32_t> prompt;
  std::string salt;
  std::string adapter;
  int32_t max_tokens = 4;
  int32_t priority = 0;
  Duration deadline{};      // 0: none
  bool one_worker = false;  // one worker does everything
  // Nodes of the first placement, the second, ...; the last stays. Empty: the router picks.
  std::vector<int> prefills;
  std::vector<int> decodes;
};

struct Plan {
  uint64_t seed = 0;  // of what is drawn while it runs: delays
  Break broken = Break::kNone;
  int prefills = 2;  // nodes 0 .. prefills - 1
  int decodes = 2;   // and those after them
  int32_t block_tokens = 4;
  std::vector<int32_t> windows{0};
  std::vector<int32_t> layer_groups{0, 0};
  int32_t pages = 40;  // of each node
  int32_t prefill_chunk = 8;
  int32_t max_in_flight = 1;
  bool shared_memory = true;  // else copies need the sender alive, not frozen and reachable
  bool fenced_copies = true;  // else a failed copy may still write later
  double copy_failures = 0;   // share of copies that fail by themselves
  // Of half a page; 0: copies are done where PUSH is handled, before anything else.
  Duration slowest_copy = std::chrono::milliseconds(4);
  Duration slowest_link = std::chrono::milliseconds(3);
  std::vector<PlannedRequest> requests;
  std::vector<Fault> faults;
  int nodes() const { return prefills + decodes; }
};

Plan draw_plan(uint64_t seed, Break broken = Break::kNone);
std::string describe(const Plan& plan);

}  // namespace tandem::sim
