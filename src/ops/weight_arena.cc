#include "ops/weight_arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <sys/mman.h>

namespace tandem::ops {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargestPiece = size_t{32} << 20;

// The address range is reserved with a page to spare; only what lies on whole huge pages is used.
// Memory that nobody touches costs nothing.
std::byte* map(size_t bytes) {
  void* range = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(range);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(base, before);
  if (before < kHugePage) ::munmap(base + before + bytes, kHugePage - before);
  ::madvise(base + before, bytes, MADV_HUGEPAGE);
  return base + before;
}

}  // namespace

WeightArena::~WeightArena() {
  for (const Piece& piece : pieces_) ::munmap(piece.base, piece.bytes);
}

WeightArena::WeightArena(WeightArena&& other) noexcept
    : pieces_(std::exchange(other.pieces_, {})), used_(std::exchange(other.used_, 0)) {}

WeightArena& WeightArena::operator=(WeightArena&& other) noexcept {
  std::swap(pieces_, other.pieces_);
  std::swap(used_, other.used_);
  return *this;
}

std::byte* WeightArena::allocate(size_t bytes) {
  const size_t size = (bytes + 63) / 64 * 64;
  if (pieces_.empty() || pieces_.back().bytes - used_ < size) {
    // Pieces grow, so that a tiny model takes one page and a large one few pieces.
    const size_t usual =
        pieces_.empty() ? kHugePage : std::min(2 * pieces_.back().bytes, kLargestPiece);
    const size_t wanted = std::max(usual, (size + kHugePage - 1) / kHugePage * kHugePage);
    std::byte* base = map(wanted);
    if (base == nullptr) return nullptr;
    pieces_.push_back({base, wanted});
    used_ = 0;
  }
  std::byte* at = pieces_.back().base + used_;
  used_ += size;
  return at;
}

}  // namespace tandem::ops
