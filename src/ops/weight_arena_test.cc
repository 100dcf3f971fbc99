#include "ops/weight_arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tandem::ops {
namespace {

TEST(WeightArena, HandsOutZerosThatOverlapNothingAndSurviveAMove) {
  WeightArena arena;
  struct Taken {
    std::byte* at;
    size_t bytes;
    int fill;
  };
  std::vector<Taken> taken;
  for (int i = 0; i < 40; ++i) {
    const size_t bytes = i == 20 ? size_t{5} << 20 : static_cast<size_t>(1 + i * 9001);
    std::byte* at = arena.allocate(bytes);
    ASSERT_NE(at, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0U);
    ASSERT_TRUE(std::all_of(at, at + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(at, i + 1, bytes);
    taken.push_back({at, bytes, i + 1});
  }
  WeightArena moved = std::move(arena);
  WeightArena assigned;
  assigned = std::move(moved);
  for (const Taken& t : taken) {
    ASSERT_TRUE(std::all_of(t.at, t.at + t.bytes,
                            [&](std::byte b) { return b == static_cast<std::byte>(t.fill); }));
  }
}

}  // namespace
}  // namespace tandem::ops
