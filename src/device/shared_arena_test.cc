#include "device/shared_arena.h"

#include <cstring>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tandem::device {
namespace {

TEST(SharedArena, APeerSeesPagesGenerationsAndTheOwnersEnd) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena) << arena.error().message;
  auto remote = RemoteSegment::map(dup((*arena)->read_only_descriptor()));
  ASSERT_TRUE(remote) << remote.error().message;
  const ArenaShape shape = (*arena)->shape();
  ASSERT_EQ((*remote)->bytes().size(), shape.segment_bytes);
  (*arena)->set_generation(2, 7);
  std::memset((*arena)->pages() + 2 * shape.page_stride, 0x5A, 1000);
  uint64_t generation = 0;
  std::memcpy(&generation, (*remote)->bytes().data() + 2 * sizeof generation, sizeof generation);
  EXPECT_EQ(generation, 7U);
  EXPECT_EQ((*remote)->bytes()[shape.pages_offset + 2 * shape.page_stride + 999], std::byte{0x5A});
  EXPECT_TRUE((*remote)->owner_alive());
  arena->reset();
  EXPECT_FALSE((*remote)->owner_alive());
  EXPECT_EQ((*remote)->bytes()[shape.pages_offset + 2 * shape.page_stride], std::byte{0x5A})
      << "and reading does not fault";
}

TEST(SharedArena, APeerCannotMapItWritable) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena);
  const int fd = (*arena)->read_only_descriptor();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd, 0), 0);
}

TEST(SharedArena, ALyingShapeIsNotSound) {
  auto arena = SharedArena::create(1000, 4);
  ASSERT_TRUE(arena);
  EXPECT_TRUE(is_sound((*arena)->shape()));
  for (int field = 0; field < 3; ++field) {
    ArenaShape bad = (*arena)->shape();
    (field == 0 ? bad.page_count : field == 1 ? bad.page_stride : bad.pages_offset) <<= 20;
    EXPECT_FALSE(is_sound(bad)) << field;
  }
  ArenaShape bad = (*arena)->shape();
  bad.segment_bytes >>= 1;
  EXPECT_FALSE(is_sound(bad));
}

TEST(RemoteSegment, WhatCouldFaultLaterIsRefused) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_FALSE(RemoteSegment::map(pipes[0]));
  close(pipes[1]);
  const int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_FALSE(RemoteSegment::map(unsealed)) << "it could shrink";
}

}  // namespace
}  // namespace tandem::device
