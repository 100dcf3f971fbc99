#include "device/shared_arena.h"

#include <atomic>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tandem::device {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

tl::unexpected<Error> no_memory(const char* what) {
  return make_error(500, "no_memory",
                    std::string("The KV arena cannot be made (") + what + ": " +
                        std::strerror(errno) +
                        "); use a smaller --kv-memory or raise the limit on shared memory.");
}

struct flock write_lock() {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

}  // namespace

Result<std::unique_ptr<SharedArena>> SharedArena::create(size_t page_bytes, int32_t page_count) {
  std::unique_ptr<SharedArena> arena(new SharedArena);
  ArenaShape& shape = arena->shape_;
  shape.page_count = static_cast<uint64_t>(page_count);
  shape.page_stride = round_up(page_bytes, 64);
  shape.pages_offset = round_up(shape.page_count * sizeof(uint64_t), 4096);
  shape.segment_bytes = round_up(shape.pages_offset + shape.page_stride * shape.page_count, 4096);
  arena->descriptor_ = memfd_create("tandem-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (arena->descriptor_ < 0) return no_memory("memfd_create");
  if (ftruncate(arena->descriptor_, static_cast<off_t>(shape.segment_bytes)) != 0)
    return no_memory("ftruncate");
  // A peer that maps the segment must never find it shorter: that would be a bus error in its
  // process.
  if (fcntl(arena->descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return no_memory("seal");
  // Held while the arena or its process lives; see RemoteSegment::owner_alive.
  struct flock whole = write_lock();
  if (fcntl(arena->descriptor_, F_OFD_SETLK, &whole) != 0) return no_memory("lock");
  void* base =
      mmap(nullptr, shape.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->descriptor_, 0);
  if (base == MAP_FAILED) return no_memory("mmap");
  arena->base_ = static_cast<std::byte*>(base);
  const std::string path = "/proc/self/fd/" + std::to_string(arena->descriptor_);
  arena->read_only_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (arena->read_only_ < 0) return no_memory("open read-only");
  return arena;
}

SharedArena::~SharedArena() {
  if (base_ != nullptr) munmap(base_, shape_.segment_bytes);
  if (read_only_ >= 0) close(read_only_);
  if (descriptor_ >= 0) close(descriptor_);
}

void SharedArena::set_generation(int32_t page, uint64_t generation) {
  std::atomic_ref<uint64_t> slot(reinterpret_cast<uint64_t*>(base_)[page]);
  slot.store(generation, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before every later write to the page
}

Result<std::unique_ptr<RemoteSegment>> RemoteSegment::map(int descriptor) {
  std::unique_ptr<RemoteSegment> segment(new RemoteSegment);
  segment->descriptor_ = descriptor;
  const auto bad = [](const char* why) {
    return make_error(502, "handoff_protocol",
                      std::string("The peer's KV arena cannot be mapped: ") + why + ".");
  };
  struct stat info{};
  if (fstat(descriptor, &info) != 0 || info.st_size <= 0) return bad("its descriptor is no memory");
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return bad("it could shrink under this process");
  const auto size = static_cast<size_t>(info.st_size);
  void* base = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) return bad(std::strerror(errno));
  segment->bytes_ = {static_cast<const std::byte*>(base), size};
  return segment;
}

RemoteSegment::~RemoteSegment() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

bool RemoteSegment::owner_alive() const {
  struct flock whole = write_lock();
  whole.l_type = F_RDLCK;
  return fcntl(descriptor_, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

bool is_sound(const ArenaShape& shape) {
  constexpr uint64_t kMost = uint64_t{1} << 46;
  return shape.segment_bytes <= kMost && shape.page_count <= kMost / 8 && shape.page_stride > 0 &&
         shape.page_stride <= kMost && shape.pages_offset >= shape.page_count * sizeof(uint64_t) &&
         shape.pages_offset <= shape.segment_bytes &&
         shape.page_count <= (shape.segment_bytes - shape.pages_offset) / shape.page_stride;
}

}  // namespace tandem::device
