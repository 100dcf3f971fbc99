#include "kv/pages/page_pool.h"

#include <algorithm>
#include <utility>

namespace tandem::kv {

std::string_view page_event_name(PageEvent event) {
  static constexpr std::string_view kNames[] = {"allocated",      "owner_added",    "owner_dropped",
                                                "reader_added",   "reader_dropped", "writer_added",
                                                "writer_dropped", "verified",       "published",
                                                "freed",          "quarantined",    "refused"};
  return kNames[static_cast<size_t>(event)];
}

std::string_view page_state_name(PageState state) {
  static constexpr std::string_view kNames[] = {"free", "filling", "verified", "published",
                                                "quarantined"};
  return kNames[static_cast<size_t>(state)];
}

PagePool::PagePool(int32_t page_count, std::function<void(int32_t, uint64_t)> on_allocate,
                   uint64_t first_generation)
    : pages_(static_cast<size_t>(page_count)),
      on_allocate_(std::move(on_allocate)),
      next_generation_(first_generation),
      max_quarantined_(std::max(page_count / 8, 1)) {
  free_.reserve(pages_.size());
  for (int32_t page = page_count - 1; page >= 0; --page) free_.push_back(page);
}

PagePool::Page* PagePool::find(PageTag tag) {
  return is_current(tag) ? &pages_[static_cast<size_t>(tag.page)] : nullptr;
}

bool PagePool::is_current(PageTag tag) const {
  if (tag.page < 0 || tag.page >= page_count()) return false;
  const Page& page = pages_[static_cast<size_t>(tag.page)];
  return page.state != PageState::kFree && page.state != PageState::kQuarantined &&
         (page.generation == tag.generation || faults_.ignore_generations);
}

std::optional<PageTag> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t index = free_.back();
  free_.pop_back();
  // One counter for all pages: a generation is never used twice, not even by another page.
  const uint64_t generation = next_generation_++;
  if (on_allocate_) on_allocate_(index, generation);
  pages_[static_cast<size_t>(index)] = Page{generation, 1, 0, 0, PageState::kFilling};
  const PageTag tag{index, generation};
  tell(tag, PageEvent::kAllocated);
  return tag;
}

bool PagePool::add_owner(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr) return refuse(tag);
  ++page->owners;
  tell(tag, PageEvent::kOwnerAdded);
  return true;
}

bool PagePool::add_reader(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr) return refuse(tag);
  ++page->readers;
  tell(tag, PageEvent::kReaderAdded);
  return true;
}

bool PagePool::add_writer(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kFilling) return refuse(tag);
  ++page->writers;
  tell(tag, PageEvent::kWriterAdded);
  return true;
}

bool PagePool::drop(PageTag tag, uint32_t Page::* count, PageEvent event) {
  Page* page = find(tag);
  if (page == nullptr || page->*count == 0) return refuse(tag);
  --(page->*count);
  tell(tag, event);
  const bool read = page->readers != 0 && !faults_.ignore_readers;
  const bool written = page->writers != 0 && !faults_.ignore_writers;
  if (page->owners != 0 || read || written) return true;
  if (page->condemned) {
    page->state = PageState::kQuarantined;
    ++lost_;
  } else {
    page->state = PageState::kFree;
    free_.push_back(tag.page);
  }
  tell(tag, PageEvent::kFreed);
  return true;
}

bool PagePool::drop_owner(PageTag tag) {
  return drop(tag, &Page::owners, PageEvent::kOwnerDropped);
}
bool PagePool::drop_reader(PageTag tag) {
  return drop(tag, &Page::readers, PageEvent::kReaderDropped);
}
bool PagePool::drop_writer(PageTag tag) {
  return drop(tag, &Page::writers, PageEvent::kWriterDropped);
}

bool PagePool::quarantine(int32_t index) {
  Page& page = pages_[static_cast<size_t>(index)];
  if (page.condemned) return false;
  page.condemned = true;
  ++quarantined_;
  if (page.state == PageState::kFree) {
    std::erase(free_, index);
    page.state = PageState::kQuarantined;
    ++lost_;
  }
  tell({index, page.generation}, PageEvent::kQuarantined);
  return true;
}

bool PagePool::mark_verified(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kFilling || page->writers != 0)
    return refuse(tag);
  page->state = PageState::kVerified;
  tell(tag, PageEvent::kVerified);
  return true;
}

bool PagePool::publish(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kVerified || page->owners == 0)
    return refuse(tag);
  page->state = PageState::kPublished;
  tell(tag, PageEvent::kPublished);
  return true;
}

}  // namespace tandem::kv
