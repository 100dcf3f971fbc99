#include "net/block_cache.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define TANDEM_SANITIZED 1
#endif
#endif
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(TANDEM_SANITIZED)
#define TANDEM_KEEPS_BLOCKS 1
#include <malloc.h>
#endif

namespace tandem::net {

#if defined(TANDEM_KEEPS_BLOCKS)

namespace {

constexpr size_t kStep = 16;
constexpr size_t kLeast = 24;  // what the smallest block of glibc holds; each further one 16 more
constexpr size_t kSizes = (BlockCache::kLargestBlock - kLeast) / kStep + 1;

// The place of the smallest blocks that hold so much; every block of a place holds bytes_of() it.
constexpr size_t place_of(size_t size) {
  return size <= kLeast ? 0 : (size - kLeast + kStep - 1) / kStep;
}
constexpr size_t bytes_of(size_t place) { return kLeast + place * kStep; }

struct Block {
  Block* next;
};

class Blocks {
 public:
  void* take(size_t size) {
    const size_t place = place_of(size);
    if (place >= kSizes || sizes_[place].first == nullptr) return nullptr;
    Size& of_size = sizes_[place];
    Block* const block = of_size.first;
    of_size.first = block->next;
    --of_size.count;
    bytes_ -= bytes_of(place);
    return block;
  }

  bool keep(void* memory, size_t place) {
    if (place >= kSizes || sizes_[place].count >= BlockCache::kMostOfASize) return false;
    if (bytes_ > BlockCache::kMostBytes) give_back();
    Size& of_size = sizes_[place];
    of_size.first = new (memory) Block{of_size.first};
    ++of_size.count;
    bytes_ += bytes_of(place);
    return true;
  }

  void give_back() {
    for (Size& of_size : sizes_) {
      while (of_size.first != nullptr) {
        Block* const block = of_size.first;
        of_size.first = block->next;
        std::free(block);
      }
      of_size.count = 0;
    }
    bytes_ = 0;
  }

  size_t bytes() const { return bytes_; }
  int scopes = 0;

 private:
  struct Size {
    Block* first = nullptr;
    uint32_t count = 0;
  };
  Size sizes_[kSizes];
  size_t bytes_ = 0;
};

constinit thread_local Blocks* thread_blocks = nullptr;

}  // namespace

// For the operators below.
static void* take_block(size_t size) {
  return thread_blocks == nullptr ? nullptr : thread_blocks->take(size);
}

static void* make_block(size_t size) {
  const size_t place = place_of(size);
  return std::malloc(place < kSizes ? bytes_of(place) : size);
}

// `size`: what was asked for. make_block() made it as large as its place says.
static bool keep_block(void* memory, size_t size) {
  return thread_blocks != nullptr && memory != nullptr &&
         thread_blocks->keep(memory, place_of(size));
}

// What it holds only malloc knows, and another malloc's blocks, or those that glibc maps, lie
// between two places: the smaller one is kept.
static bool keep_block(void* memory) {
  if (thread_blocks == nullptr || memory == nullptr) return false;
  const size_t usable = ::malloc_usable_size(memory);
  return usable >= kLeast && thread_blocks->keep(memory, (usable - kLeast) / kStep);
}

BlockCache::BlockCache() {
  if (thread_blocks == nullptr) {
    void* const memory = std::malloc(sizeof(Blocks));
    if (memory == nullptr) return;
    thread_blocks = new (memory) Blocks;
  }
  ++thread_blocks->scopes;
}

BlockCache::~BlockCache() {
  if (thread_blocks == nullptr || --thread_blocks->scopes > 0) return;
  thread_blocks->give_back();
  std::free(thread_blocks);
  thread_blocks = nullptr;
}

void BlockCache::give_back() {
  if (thread_blocks != nullptr) thread_blocks->give_back();
}

size_t BlockCache::kept_bytes() { return thread_blocks == nullptr ? 0 : thread_blocks->bytes(); }
bool BlockCache::works() { return true; }

#else

BlockCache::BlockCache() = default;
BlockCache::~BlockCache() = default;
void BlockCache::give_back() {}
size_t BlockCache::kept_bytes() { return 0; }
bool BlockCache::works() { return false; }

#endif

}  // namespace tandem::net

#if defined(TANDEM_KEEPS_BLOCKS)

// Every block is malloc's own, so it does not matter who frees one that was taken here.
// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(size_t size) {
  if (void* const kept = tandem::net::take_block(size)) return kept;
  while (true) {
    if (void* const made = tandem::net::make_block(size)) return made;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* memory) noexcept {
  if (!tandem::net::keep_block(memory)) std::free(memory);
}

void operator delete(void* memory, size_t size) noexcept {
  if (!tandem::net::keep_block(memory, size)) std::free(memory);
}
// NOLINTEND(misc-new-delete-overloads)

#endif
