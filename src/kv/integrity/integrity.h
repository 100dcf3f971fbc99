// The levels of `--kv-integrity`, and the faults that tests plant (`--kv-fault`).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace tandem::kv {

// off: nothing. tags: every page of a pass is compared with what its sequence expects. full: also
// digests of the bytes, at every move between places, on hits, and by a scrubber.
enum class IntegrityLevel : uint8_t { kOff, kTags, kFull };
std::string_view integrity_name(IntegrityLevel level);
Result<IntegrityLevel> parse_integrity(std::string_view name);  // 400 "invalid_option"

enum class KvFault : uint8_t {
  kNone,
  kSwapPages,        // two sequences' tables exchange a page
  kFreeEarly,        // a page goes back to the pool while its sequence uses it
  kStaleGeneration,  // a table keeps a tag of an allocation that has ended
  kFlipBit,          // a bit of a finished page changes
  kLostLayer,        // a layer of a finished page is lost
  kFlipBitInCopy,    // a bit changes on the way from another worker
  kLostLayerInCopy,  // a layer never comes from another worker
};

// One fault, planted once, at the opportunity after the first `after`. Not thread-safe: each
// component that plants has its own.
struct KvFaults {
  KvFault kind = KvFault::kNone;
  uint32_t after = 0;
  uint32_t seen = 0;
  bool planted = false;

  // Whether to plant `which` now. Called when there is an opportunity.
  bool due(KvFault which);
};
// "NAME" or "NAME:AFTER"; empty: none. 400 "invalid_option".
Result<KvFaults> parse_kv_fault(std::string_view text);

}  // namespace tandem::kv
