#include "device/shared_arena.h"

#include <cstring>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tandem::device {
namespace {

TEST(SharedArena, APeerReadsPagesAndNoticesReuse) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena) << arena.error().message;
  auto remote = RemoteArena::map(dup((*arena)->read_only_descriptor()), (*arena)->shape());
  ASSERT_TRUE(remote) << remote.error().message;
  (*arena)->set_generation(2, 7);
  std::byte* page = (*arena)->pages() + 2 * (*arena)->shape().page_stride;
  std::memset(page, 0x5A, 1000);
  std::vector<std::byte> out(100);
  EXPECT_TRUE((*remote)->copy(2, 7, 900, out));
  EXPECT_EQ(out[0], std::byte{0x5A});
  (*arena)->set_generation(2, 8);
  EXPECT_FALSE((*remote)->copy(2, 7, 900, out));
}

TEST(SharedArena, APeerCannotMapItWritable) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena);
  const int fd = (*arena)->read_only_descriptor();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd, 0), 0);
}

TEST(RemoteArena, RefusesALyingShape) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena);
  const ArenaShape good = (*arena)->shape();
  for (int field = 0; field < 4; ++field) {
    ArenaShape bad = good;
    (field == 0   ? bad.segment_bytes
     : field == 1 ? bad.page_count
     : field == 2 ? bad.page_stride
                  : bad.pages_offset) <<= 20;
    EXPECT_FALSE(RemoteArena::map(dup((*arena)->read_only_descriptor()), bad)) << field;
  }
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_FALSE(RemoteArena::map(pipes[0], good));
  close(pipes[1]);
  auto remote = RemoteArena::map(dup((*arena)->read_only_descriptor()), good);
  ASSERT_TRUE(remote);
  std::vector<std::byte> out(100);
  EXPECT_FALSE((*remote)->copy(4, 0, 0, out));
  EXPECT_FALSE((*remote)->copy(-1, 0, 0, out));
  EXPECT_FALSE((*remote)->copy(0, 0, 1000, out));
}

}  // namespace
}  // namespace tandem::device
