// SharedArena: the pages of one worker in memory that a peer process on the same host can map
// read-only.
//
// Layout of the segment: a table of 64-bit generations, one per page, then (page aligned) the
// pages. The owner stores a page's new generation before it changes any byte; a reader copies first
// and compares the generation afterwards (a sequence lock without a lock: Boehm, "Can seqlocks get
// along with programming language memory models?", 2012). The descriptor handed to peers is opened
// read-only, so a peer can never write here, however it misbehaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace tandem::device {

struct ArenaShape {
  uint64_t segment_bytes = 0;
  uint64_t pages_offset = 0;
  uint64_t page_stride = 0;
  uint64_t page_count = 0;
};
// False for a shape in which pages or generations would lie outside the segment.
bool is_sound(const ArenaShape& shape);

class SharedArena {
 public:
  // `page_bytes` is rounded up to a stride of 64. Memory is committed lazily by the system. Error
  // 500 "no_memory".
  static Result<std::unique_ptr<SharedArena>> create(size_t page_bytes, int32_t page_count);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  std::span<std::byte> segment() const { return {base_, shape_.segment_bytes}; }
  std::byte* pages() const { return base_ + shape_.pages_offset; }
  const ArenaShape& shape() const { return shape_; }
  int read_only_descriptor() const { return read_only_; }
  // Called by the owner before the page's bytes change.
  void set_generation(int32_t page, uint64_t generation);

 private:
  SharedArena() = default;
  std::byte* base_ = nullptr;
  ArenaShape shape_;
  int descriptor_ = -1;
  int read_only_ = -1;
};

// Another process's segment, mapped read-only. Thread-safe.
class RemoteSegment {
 public:
  // Takes `descriptor`. Error 502 "handoff_protocol" when the mapping could fault later on: it is
  // no segment, or one that could shrink.
  static Result<std::unique_ptr<RemoteSegment>> map(int descriptor);
  ~RemoteSegment();
  RemoteSegment(const RemoteSegment&) = delete;
  RemoteSegment& operator=(const RemoteSegment&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // False once the arena was destroyed or its process ended: the kernel drops the owner's lock on
  // the segment then. (A process that is stopped is alive.)
  bool owner_alive() const;

 private:
  RemoteSegment() = default;
  std::span<const std::byte> bytes_;
  int descriptor_ = -1;
};

}  // namespace tandem::device
