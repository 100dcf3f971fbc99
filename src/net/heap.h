// Memory of large bodies, which come and go with every request: by default the C library asks the
// kernel for each anew and gives it back, so that every page of every body is cleared and faulted
// in (a quarter of what a router spends on a body of 1 MiB). Here it stays with the process while
// bodies come, and goes back a few seconds later. Where the C library is not glibc, nothing
// happens.
#pragma once

#include <cstddef>

#include "net/reactor.h"

namespace tandem::net {

// For the whole process, before it has threads. A process that calls it must have a HeapKeeper.
void keep_freed_memory();

// Gives back what is free now: at the earliest `kLeastPause` after it did so before, and once
// `kWorthwhile` bytes of bodies have come since. Of one reactor.
class HeapKeeper {
 public:
  static constexpr size_t kWorthwhile = 8UL << 20;
  static constexpr Duration kLeastPause = std::chrono::seconds(2);

  explicit HeapKeeper(Reactor& reactor);
  void body_came(size_t bytes);

 private:
  size_t since_ = 0;
  bool armed_ = false;
  Deadline trim_;
};

}  // namespace tandem::net
