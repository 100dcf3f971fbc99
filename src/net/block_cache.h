// BlockCache: memory blocks that a reactor's thread frees stay with the thread, by size, for its
// next request. The C library keeps seven of a size and none beyond a kilobyte; a router with some
// dozens of requests in flight takes and frees two hundred blocks in each, and sorting and joining
// them was a tenth of what a request costs.
//
// Replaces the process's operator new and delete (not the aligned ones), so that everything on the
// thread profits; a thread without a BlockCache goes straight to malloc. A block may be taken by
// one thread and freed by another. Where the C library is not glibc, and under sanitizers, nothing
// happens.
#pragma once

#include <cstddef>

namespace tandem::net {

class BlockCache {
 public:
  static constexpr size_t kLargestBlock = 32UL << 10;
  static constexpr size_t kMostBytes = 4UL << 20;  // then all go back
  static constexpr size_t kMostOfASize = 256;

  BlockCache();   // from now on the calling thread keeps what it frees; may be nested
  ~BlockCache();  // the outermost gives all of it back; on the same thread
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Of the calling thread.
  static void give_back();
  static size_t kept_bytes();
  static bool works();  // false: nothing is ever kept
};

}  // namespace tandem::net
