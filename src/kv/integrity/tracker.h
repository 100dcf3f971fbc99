// IntegrityTracker: what every page holds, kept beside the page tables, and compared with what
// each sequence expects before a pass reads the cache (DESIGN I6, I7).
//
// Two records are kept apart. A page's *label* is written when the page is given out: which
// allocation (generation), for which sequence, at which place of it ([block][group]), and, once its
// block is published, the block's content. A sequence's *expectation* of each place is written by
// the sequence: the tag it was given, and either itself as the owner or, when the block was there
// already, the content that its own tokens demand. A pass carries the planned pages and the
// expectations; a table that was mixed up after them, a page that went back too early, a tag of an
// earlier allocation, and an index that answers with another block each differ from one of the two.
//
// Threads: check() on the device thread; all else on the owner thread. Labels are atomics: only
// when a page is wrongly in two hands do both threads touch one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kv/integrity/integrity.h"
#include "kv/pages/page_pool.h"
#include "protocol/content_id.h"
#include "protocol/step_plan.h"

namespace tandem::kv {

// Who or what a page was filled for. Owners are odd and contents even, so they never meet.
inline uint64_t owner_key(protocol::SequenceId id) { return id << 1 | 1; }
uint64_t content_key(const protocol::ContentId& id);

struct PageExpectation {
  uint64_t generation = 0;
  uint64_t key = 0;
  int32_t page = -1;
};

struct PageLabel {
  uint64_t generation = 0;  // 0: free
  uint64_t owner = 0;
  uint64_t content = 0;  // 0: not published
  int32_t place = -1;    // block * groups + group
};

// One sequence of a pass. `planned` is what the kernels will read, [block][group].
struct StepPages {
  std::span<const int32_t> planned;
  std::span<const PageExpectation> expected;  // as long as `planned`, or longer
  int32_t first_position = 0;                 // of its rows
};

enum class TagMismatch : uint8_t {
  kMissing,     // no page, or none expected
  kMapping,     // another page than the one expected
  kGeneration,  // the page was given back, or given out again
  kOwner,       // it holds another block
  kPosition,    // it belongs to another place
  kDigest,      // its bytes are not those that were written
};
std::string_view mismatch_name(TagMismatch mismatch);

// The first thing wrong with a sequence of a pass.
struct TagFault {
  size_t sequence = 0;  // index in the pass
  TagMismatch kind = TagMismatch::kMissing;
  int32_t place = 0;
  int32_t planned = -1;
  PageExpectation expected = {};
  PageLabel found = {};  // of the planned page
};

struct PageHistoryEntry {
  TimePoint at{};
  uint64_t generation = 0;
  protocol::SequenceId actor = 0;  // 0: none in particular
  PageEvent event = PageEvent::kFreed;
};

struct TrackerOptions {
  IntegrityLevel level = IntegrityLevel::kOff;
  int32_t page_count = 0;
  int32_t block_tokens = 16;
  std::vector<int32_t> windows{0};  // by page group
};

class IntegrityTracker : public PageObserver {
 public:
  virtual IntegrityLevel level() const = 0;

  // --- owner thread
  // For the history: who acts, and when.
  virtual void set_actor(protocol::SequenceId id) = 0;
  virtual void set_time(TimePoint now) = 0;
  virtual void allocated(PageTag tag, protocol::SequenceId owner, int32_t place) = 0;
  virtual void published(PageTag tag, uint64_t content) = 0;
  // The page's bytes were found wrong: whoever reads it fails from now on.
  virtual void condemn(int32_t page) = 0;
  virtual PageLabel label(int32_t page) const = 0;
  virtual std::vector<PageHistoryEntry> history(int32_t page) const = 0;  // oldest first
  // Level full: of a whole block's page, one for each layer; forgotten with its allocation.
  virtual void set_digests(PageTag tag, std::vector<uint64_t> digests) = 0;
  virtual std::span<const uint64_t> digests(PageTag tag) const = 0;  // empty: none known

  // --- device thread
  // Every live place of every sequence, in one pass. At most one fault for each sequence.
  virtual void check(std::span<const StepPages> sequences, std::vector<TagFault>& faults) const = 0;
};

// For level off: does nothing.
std::unique_ptr<IntegrityTracker> make_tracker(TrackerOptions options);

}  // namespace tandem::kv
