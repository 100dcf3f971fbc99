#include "net/block_cache.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tandem::net {
namespace {

class BlockCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!BlockCache::works()) GTEST_SKIP() << "not with this C library, or not under sanitizers";
  }
};

TEST_F(BlockCacheTest, WhatWasFreedIsTakenAgain) {
  const BlockCache cache;
  for (const size_t size : {1, 24, 25, 1000, 1041, 16500, 32000}) {
    void* const first = ::operator new(size);
    ::operator delete(first);
    void* const second = ::operator new(size);
    EXPECT_EQ(first, second) << size;
    ::operator delete(second);
  }
  EXPECT_GT(BlockCache::kept_bytes(), 32000U);
  BlockCache::give_back();
  // 1000 = 24 + 61 * 16: sizes up to it, of its place, are as good as it.
  for (const size_t size : {985, 990, 1000}) {
    void* const first = ::operator new(size);
    ::operator delete(first, size);
    for (const size_t other : {1000, 985}) {
      void* const second = ::operator new(other);
      EXPECT_EQ(first, second) << size << ' ' << other;
      ::operator delete(second, other);
    }
    void* const larger = ::operator new(1001);
    EXPECT_NE(first, larger);
    ::operator delete(larger, 1001);
  }
}

#if defined(__GLIBC__)
// Blocks that malloc maps one by one are not of the sizes that it cuts from its heap.
TEST_F(BlockCacheTest, ABlockHoldsWhatItIsTakenForWhateverMallocMakes) {
  const BlockCache cache;
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, 4096), 1);
  std::vector<void*> blocks(64);
  for (const bool sized : {false, true}) {
    for (size_t size = 1; size < BlockCache::kLargestBlock; size += size / 4 + 1) {
      for (void*& block : blocks) block = ::operator new(size);
      for (void* const block : blocks) {
        if (sized) {
          ::operator delete(block, size);
        } else {
          ::operator delete(block);
        }
      }
      // What one of them was kept as, and what comes next to it.
      const size_t held = ::malloc_usable_size(blocks.back());
      for (const size_t again : {size, held - 16, held, held + 1, held + 8, held + 16}) {
        for (void*& block : blocks) {
          block = ::operator new(again);
          ASSERT_GE(::malloc_usable_size(block), again) << size;
        }
        for (void* const block : blocks) ::operator delete(block, again);
      }
      BlockCache::give_back();
    }
  }
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
}
#endif

TEST_F(BlockCacheTest, AThreadWithoutOneKeepsNothing) {
  ::operator delete(::operator new(100));
  EXPECT_EQ(BlockCache::kept_bytes(), 0U);
  {
    const BlockCache outer;
    {
      const BlockCache inner;
    }
    ::operator delete(::operator new(100));
    EXPECT_GT(BlockCache::kept_bytes(), 0U);
    BlockCache::give_back();
    EXPECT_EQ(BlockCache::kept_bytes(), 0U);
    ::operator delete(::operator new(100));
  }
  EXPECT_EQ(BlockCache::kept_bytes(), 0U);
}

TEST_F(BlockCacheTest, IsBounded) {
  const BlockCache cache;
  std::vector<void*> blocks(4000);
  for (size_t size = 64; size < 2 * BlockCache::kLargestBlock; size += size / 2) {
    for (void*& block : blocks) block = ::operator new(size);
    for (void* const block : blocks) {
      ::operator delete(block);
      ASSERT_LE(BlockCache::kept_bytes(), BlockCache::kMostBytes + BlockCache::kLargestBlock);
    }
  }
}

// Blocks in use never overlap, whoever took and whoever frees them.
TEST_F(BlockCacheTest, ABlockBelongsToOneAtATime) {
  struct Held {
    unsigned char* bytes;
    size_t size;
    unsigned char mark;
  };
  const auto work = [](unsigned seed, std::vector<Held> held) {
    const BlockCache cache;
    std::mt19937 random(seed);
    for (int i = 0; i < 20000; ++i) {
      if (held.size() < 200 || random() % 2 == 0) {
        const size_t size = 1 + random() % (random() % 8 == 0 ? 40000 : 600);
        const auto mark = static_cast<unsigned char>(random());
        held.push_back({static_cast<unsigned char*>(::operator new(size)), size, mark});
        std::memset(held.back().bytes, mark, size);
      } else {
        std::swap(held[random() % held.size()], held.back());
        const Held gone = held.back();
        held.pop_back();
        for (size_t at = 0; at < gone.size; ++at) {
          if (gone.bytes[at] != gone.mark) return std::vector<Held>();
        }
        if (random() % 2 == 0) {
          ::operator delete(gone.bytes);
        } else {
          ::operator delete(gone.bytes, gone.size);
        }
      }
    }
    return held;
  };
  std::vector<Held> left;
  std::thread([&] { left = work(1, {}); }).join();
  ASSERT_FALSE(left.empty());
  left = work(2, left);
  ASSERT_FALSE(left.empty());
  for (const Held& held : left) ::operator delete(held.bytes);
}

}  // namespace
}  // namespace tandem::net
