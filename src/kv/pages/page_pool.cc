#include "kv/pages/page_pool.h"

#include <utility>

namespace tandem::kv {

PagePool::PagePool(int32_t page_count, std::function<void(int32_t, uint64_t)> on_allocate,
                   uint64_t first_generation)
    : pages_(static_cast<size_t>(page_count)),
      on_allocate_(std::move(on_allocate)),
      next_generation_(first_generation) {
  free_.reserve(pages_.size());
  for (int32_t page = page_count - 1; page >= 0; --page) free_.push_back(page);
}

PagePool::Page* PagePool::find(PageTag tag) {
  return is_current(tag) ? &pages_[static_cast<size_t>(tag.page)] : nullptr;
}

bool PagePool::is_current(PageTag tag) const {
  if (tag.page < 0 || tag.page >= page_count()) return false;
  const Page& page = pages_[static_cast<size_t>(tag.page)];
  return page.state != PageState::kFree && page.generation == tag.generation;
}

std::optional<PageTag> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t index = free_.back();
  free_.pop_back();
  // One counter for all pages: a generation is never used twice, not even by another page.
  const uint64_t generation = next_generation_++;
  if (on_allocate_) on_allocate_(index, generation);
  pages_[static_cast<size_t>(index)] = Page{generation, 1, 0, 0, PageState::kFilling};
  return PageTag{index, generation};
}

bool PagePool::add_owner(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr) return false;
  ++page->owners;
  return true;
}

bool PagePool::add_reader(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr) return false;
  ++page->readers;
  return true;
}

bool PagePool::add_writer(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kFilling) return false;
  ++page->writers;
  return true;
}

bool PagePool::drop(PageTag tag, uint32_t Page::* count) {
  Page* page = find(tag);
  if (page == nullptr || page->*count == 0) return false;
  --(page->*count);
  if (page->owners == 0 && page->readers == 0 && page->writers == 0) {
    page->state = PageState::kFree;
    free_.push_back(tag.page);
  }
  return true;
}

bool PagePool::drop_owner(PageTag tag) { return drop(tag, &Page::owners); }
bool PagePool::drop_reader(PageTag tag) { return drop(tag, &Page::readers); }
bool PagePool::drop_writer(PageTag tag) { return drop(tag, &Page::writers); }

bool PagePool::mark_verified(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kFilling || page->writers != 0) return false;
  page->state = PageState::kVerified;
  return true;
}

bool PagePool::publish(PageTag tag) {
  Page* page = find(tag);
  if (page == nullptr || page->state != PageState::kVerified || page->owners == 0) return false;
  page->state = PageState::kPublished;
  return true;
}

}  // namespace tandem::kv
