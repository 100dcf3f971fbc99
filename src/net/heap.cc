#include "net/heap.h"

#include "net/block_cache.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tandem::net {

namespace {

#if defined(__GLIBC__)
constexpr int kMapAbove = 32 << 20;  // the most that glibc takes
constexpr int kKeepFree = 512 << 20;
constexpr int kGrowBy = 1 << 20;

void give_back() {
  BlockCache::give_back();
  ::malloc_trim(static_cast<size_t>(kGrowBy));
}
#else
void give_back() {}
#endif

}  // namespace

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_THRESHOLD, kMapAbove);
  ::mallopt(M_TRIM_THRESHOLD, kKeepFree);
  ::mallopt(M_TOP_PAD, kGrowBy);
#endif
}

HeapKeeper::HeapKeeper(Reactor& reactor)
    : trim_(reactor, [this] {
        armed_ = false;
        since_ = 0;
        give_back();
      }) {}

void HeapKeeper::body_came(size_t bytes) {
  since_ += bytes;
  if (armed_ || since_ < kWorthwhile) return;
  armed_ = true;
  trim_.arm(kLeastPause);
}

}  // namespace tandem::net
