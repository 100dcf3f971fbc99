// For tests: counts what this program allocates with new. Included by one source of a test program,
// since it replaces the global operators of all of it. (An array's new is the plain one's.)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tandem {

inline std::atomic<int64_t> allocations = 0;  // by any thread, since the program began

}  // namespace tandem

// NOLINTBEGIN(misc-definitions-in-headers,cppcoreguidelines-no-malloc)
void* operator new(std::size_t size) {
  tandem::allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) std::abort();
  return memory;
}
// A sanitizer's own would not call the above.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return operator new(size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  tandem::allocations.fetch_add(1, std::memory_order_relaxed);
  const auto to = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(to, (size + to - 1) / to * to);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
// NOLINTEND(misc-definitions-in-headers,cppcoreguidelines-no-malloc)
