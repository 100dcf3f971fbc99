// PagePool: the life cycle of pages, as one pure component (DESIGN I1-I3).
//
// A page has an owner count (sequences, the prefix index, a handoff that keeps it alive), a reader
// count (a peer that copies from it) and a writer count (a step in flight or a transfer that fills
// it). It returns to the free list only when all three are zero. Each allocation bumps its 64-bit
// generation; every call names the (page, generation) it means and is refused on a mismatch.
//
//   FREE -> FILLING -> VERIFIED -> PUBLISHED -> FREE      (FILLING and VERIFIED may also go
//   straight back to FREE)
//
// Only a VERIFIED page can be published, and only a PUBLISHED page may stand in an index.
//
// A page whose bytes or tags were found wrong is quarantined: it goes on while it is counted, and
// then never returns to the free list. Only a new process uses it again. How many may
// be so before the caller gives up is its own decision: `max_quarantined` only says it.
// Not thread-safe: one owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/handoff_frames.h"

namespace tandem::kv {

using protocol::PageTag;

enum class PageState : uint8_t { kFree, kFilling, kVerified, kPublished, kQuarantined };

enum class PageEvent : uint8_t {
  kAllocated,
  kOwnerAdded,
  kOwnerDropped,
  kReaderAdded,
  kReaderDropped,
  kWriterAdded,
  kWriterDropped,
  kVerified,
  kPublished,
  kFreed,
  kQuarantined,
  kRefused,  // a call named a stale tag, or would have broken a count
};
std::string_view page_event_name(PageEvent event);
std::string_view page_state_name(PageState state);

// Hears of every change of a page, inside the call that makes it.
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void on_page_event(PageTag tag, PageEvent event) = 0;
};

// Switches off one protection each, for tests that prove the protection is needed.
struct PoolFaults {
  bool ignore_readers = false;      // pages return to the free list under readers,
  bool ignore_writers = false;      // or under writers
  bool ignore_generations = false;  // stale tags are taken for current ones
};

class PagePool {
 public:
  // `on_allocate(page, generation)` runs before the page is handed out, so that readers in other
  // processes can see the new generation before any byte changes. Generations start at
  // `first_generation`.
  explicit PagePool(int32_t page_count, std::function<void(int32_t, uint64_t)> on_allocate = {},
                    uint64_t first_generation = 1);
  // Outlives the pool; null: nobody listens.
  void set_observer(PageObserver* observer) { observer_ = observer; }

  void set_faults(PoolFaults faults) { faults_ = faults; }

  // A FILLING page with one owner, or nothing when none is free.
  std::optional<PageTag> allocate();

  // Each returns false, and changes nothing, when the tag is stale or the count would become
  // negative.
  [[nodiscard]] bool add_owner(PageTag tag);
  bool drop_owner(PageTag tag);
  [[nodiscard]] bool add_reader(PageTag tag);
  bool drop_reader(PageTag tag);
  [[nodiscard]] bool add_writer(
      PageTag tag);  // refused on VERIFIED and PUBLISHED pages: their bytes are final
  bool drop_writer(PageTag tag);

  // FILLING -> VERIFIED: every byte that the block's manifest expects is there. Refused while a
  // writer is active.
  [[nodiscard]] bool mark_verified(PageTag tag);
  [[nodiscard]] bool publish(PageTag tag);  // VERIFIED -> PUBLISHED

  // From now on the page is lost: at once when it is free, else when its last count is dropped.
  // False when it is lost already.
  bool quarantine(int32_t page);
  void set_max_quarantined(int32_t pages) { max_quarantined_ = pages; }
  bool quarantined(int32_t page) const { return pages_[static_cast<size_t>(page)].condemned; }
  int32_t max_quarantined() const { return max_quarantined_; }
  int32_t quarantined_count() const { return quarantined_; }  // in use or not
  int32_t lost_count() const { return lost_; }                // and out of use

  bool is_current(PageTag tag) const;
  PageState state(int32_t page) const { return pages_[static_cast<size_t>(page)].state; }
  uint32_t owners(int32_t page) const { return pages_[static_cast<size_t>(page)].owners; }
  uint32_t readers(int32_t page) const { return pages_[static_cast<size_t>(page)].readers; }
  uint32_t writers(int32_t page) const { return pages_[static_cast<size_t>(page)].writers; }
  uint64_t generation(int32_t page) const { return pages_[static_cast<size_t>(page)].generation; }
  int32_t page_count() const { return static_cast<int32_t>(pages_.size()); }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }

 private:
  struct Page {
    uint64_t generation = 0;
    uint32_t owners = 0;
    uint32_t readers = 0;
    uint32_t writers = 0;
    PageState state = PageState::kFree;
    bool condemned = false;
  };
  Page* find(PageTag tag);
  bool drop(PageTag tag, uint32_t Page::* count, PageEvent event);
  void tell(PageTag tag, PageEvent event) const {
    if (observer_ != nullptr) observer_->on_page_event(tag, event);
  }
  bool refuse(PageTag tag) const {
    tell(tag, PageEvent::kRefused);
    return false;
  }

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // last in, first out: warm pages are used again first
  std::function<void(int32_t, uint64_t)> on_allocate_;
  uint64_t next_generation_;
  PageObserver* observer_ = nullptr;
  PoolFaults faults_;
  int32_t max_quarantined_;
  int32_t quarantined_ = 0;
  int32_t lost_ = 0;
};

}  // namespace tandem::kv
