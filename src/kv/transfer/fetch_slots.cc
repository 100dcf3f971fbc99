#include "kv/transfer/fetch_slots.h"

#include <new>

#include <sys/mman.h>

namespace tandem::kv {

FetchSlots::FetchSlots(size_t count, size_t stage_bytes)
    : slot_bytes_((kMaxPages * sizeof(uint64_t) + stage_bytes + 4095) / 4096 * 4096),
      stage_bytes_(stage_bytes) {
  bytes_ = count * slot_bytes_;
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(base);
  for (size_t slot = count; slot-- > 0;) free_.push_back(static_cast<int>(slot));
}

FetchSlots::~FetchSlots() { munmap(base_, bytes_); }

int FetchSlots::take() {
  if (free_.empty()) return -1;
  const int slot = free_.back();
  free_.pop_back();
  return slot;
}

}  // namespace tandem::kv
