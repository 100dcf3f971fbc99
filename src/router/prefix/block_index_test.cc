#include "router/prefix/block_index.h"

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

constexpr size_t kPlenty = size_t{64} << 20;

std::vector<BlockKey> chain(uint64_t seed, size_t blocks, BlockKey parent = 1) {
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < blocks; ++i) {
    const std::array<int32_t, 2> tokens{static_cast<int32_t>(seed), static_cast<int32_t>(i)};
    keys.push_back(parent = PrefixHasher::next(parent, tokens));
  }
  return keys;
}

void fill(BlockIndex& index, LaneId lane, std::span<const BlockKey> keys) {
  for (const BlockKey key : keys) (void)index.insert(lane, key * 3 + lane, key);
}

std::map<uint32_t, std::pair<int32_t, float>> told(const std::vector<BlockIndex::Held>& held) {
  std::map<uint32_t, std::pair<int32_t, float>> out;
  for (const auto& one : held) out[one.group] = {one.blocks, one.credit};
  return out;
}

TEST(BlockIndex, MatchesTheLeadingBlocksOfEachGroup) {
  BlockIndex index(kPlenty);
  const LaneId a = *index.add_lane(10, 1);
  const LaneId b = *index.add_lane(11, 1);
  const auto keys = chain(1, 1000);
  fill(index, a, std::span(keys).first(700));
  fill(index, b, keys);
  const auto held = told(index.match(keys));
  EXPECT_EQ(held.at(10).first, 700);
  EXPECT_EQ(held.at(11).first, 1000);
  EXPECT_TRUE(index.match(chain(2, 1000)).empty());
  EXPECT_EQ(told(index.match(std::span(keys).first(5))).at(10).first, 5);
}

TEST(BlockIndex, TiersOfOneCacheCountTogetherByTheirWeights) {
  BlockIndex index(kPlenty);
  const LaneId device = *index.add_lane(3, 1.0F);
  const LaneId host = *index.add_lane(3, 0.75F);
  const auto keys = chain(1, 400);
  fill(index, device, std::span(keys).first(100));
  fill(index, host, std::span(keys).subspan(50, 150));
  for (const auto& held : {index.match(keys), index.match_exactly(keys)}) {
    ASSERT_EQ(held.size(), 1U);
    EXPECT_EQ(held[0].blocks, 200);
    EXPECT_FLOAT_EQ(held[0].credit, 100 + 100 * 0.75F);
  }
}

TEST(BlockIndex, AHoleEndsAnExactMatch) {
  BlockIndex index(kPlenty);
  const LaneId lane = *index.add_lane(0, 1);
  const auto keys = chain(1, 30);
  fill(index, lane, keys);
  EXPECT_TRUE(index.remove(lane, keys[10] * 3 + lane));
  EXPECT_EQ(index.match(keys)[0].blocks, 10);
  EXPECT_FALSE(index.remove(lane, keys[10] * 3 + lane));
  fill(index, lane, std::span(keys).subspan(10, 1));
  EXPECT_EQ(index.match(keys)[0].blocks, 30);
}

TEST(BlockIndex, ASecondCopyNeedsASecondRemoval) {
  BlockIndex index(kPlenty);
  const LaneId lane = *index.add_lane(0, 1);
  EXPECT_EQ(index.insert(lane, 7, 70), BlockIndex::Inserted::kNew);
  EXPECT_EQ(index.insert(lane, 7, 70), BlockIndex::Inserted::kAgain);
  EXPECT_EQ(index.insert(lane, 7, 71), BlockIndex::Inserted::kOtherKey);
  EXPECT_TRUE(index.remove(lane, 7));
  EXPECT_EQ(index.entries(), 1U);
  EXPECT_TRUE(index.remove(lane, 7));
  EXPECT_EQ(index.entries(), 0U);
  EXPECT_EQ(index.blocks(), 0U);
  EXPECT_EQ(index.insert(lane, 0, 9), BlockIndex::Inserted::kNew) << "zero is a name too";
  EXPECT_EQ(index.find(lane, 0), 9U);
}

TEST(BlockIndex, ManyLanesMayHoldOneBlockAndLeaveInAnyOrder) {
  BlockIndex index(kPlenty);
  const auto keys = chain(1, 100);
  std::vector<LaneId> lanes;
  lanes.reserve(50);
  for (uint32_t i = 0; i < 50; ++i) lanes.push_back(*index.add_lane(i, 1));
  const size_t empty = index.bytes();
  for (const LaneId lane : lanes) fill(index, lane, keys);
  EXPECT_EQ(index.match(keys).size(), 50U);
  EXPECT_EQ(index.blocks(), 100U);
  std::mt19937 random(3);
  std::shuffle(lanes.begin(), lanes.end(), random);
  size_t left = 50;
  for (const LaneId lane : lanes) {
    index.retire_lane(lane);
    EXPECT_EQ(index.match(keys).size(), --left) << "at once";
    if (left % 2 == 0) EXPECT_FALSE(index.sweep(1000));
  }
  EXPECT_FALSE(index.sweep(1000));
  EXPECT_EQ(index.entries(), 0U);
  EXPECT_LE(index.bytes(), empty + 20000);
}

TEST(BlockIndex, ARetiredLaneGoesInSlicesAndItsNumberComesAgain) {
  BlockIndex index(kPlenty);
  const LaneId gone = *index.add_lane(0, 1);
  const LaneId stays = *index.add_lane(1, 1);
  const auto keys = chain(1, 1000);
  fill(index, gone, keys);
  fill(index, stays, std::span(keys).first(300));
  index.retire_lane(gone);
  const LaneId next = *index.add_lane(0, 1);
  EXPECT_NE(next, gone) << "its entries are still there";
  fill(index, next, std::span(keys).first(10));
  int slices = 0;
  for (bool more = true; more; ++slices) {
    const size_t before = index.entries();
    more = index.sweep(64);
    EXPECT_LE(before - index.entries(), 64U);
    EXPECT_EQ(told(index.match_exactly(keys)),
              (std::map<uint32_t, std::pair<int32_t, float>>{{0, {10, 10}}, {1, {300, 300}}}));
  }
  EXPECT_EQ(slices, 16);
  EXPECT_EQ(index.entries(), 310U);
  EXPECT_EQ(index.blocks(), 300U);
  EXPECT_EQ(*index.add_lane(2, 1), gone);
}

TEST(BlockIndex, NeverGrowsPastItsBytesAndKeepsWhatIsUsed) {
  constexpr size_t kBytes = size_t{2} << 20;
  BlockIndex index(kBytes);
  std::vector<LaneId> lanes;
  lanes.reserve(6);
  for (uint32_t i = 0; i < 6; ++i) lanes.push_back(*index.add_lane(i, 1));
  const auto kept = chain(0, 200);
  fill(index, lanes[0], kept);
  for (uint64_t i = 1; i < 3000; ++i) {
    fill(index, lanes[i % lanes.size()], chain(i, 100));
    ASSERT_LE(index.bytes(), kBytes) << i;
    index.touch(kept);
  }
  EXPECT_GT(index.evictions(), 100000U);
  const auto held = index.match_exactly(kept);
  ASSERT_EQ(held.size(), 1U);
  EXPECT_EQ(held[0].blocks, 200) << "touched all the time";
  // The lanes shrink; another one grows.
  for (size_t i = 1; i < lanes.size(); ++i) index.retire_lane(lanes[i]);
  const LaneId other = *index.add_lane(9, 1);
  for (uint64_t i = 5000; i < 6000; ++i) {
    fill(index, other, chain(i, 100));
    ASSERT_LE(index.bytes(), kBytes) << i;
    (void)index.sweep(50);
  }
}

// Random histories of caches that evict leaves first, against sets.
TEST(BlockIndex, AgreesWithAPlainModelOnRandomHistories) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    BlockIndex index(kPlenty);
    constexpr uint32_t kLanes = 7;
    std::vector<std::set<BlockKey>> model(kLanes);
    std::vector<LaneId> lanes;
    lanes.reserve(kLanes);
    // Lanes 5 and 6 are tiers of the caches of lanes 0 and 1.
    for (uint32_t i = 0; i < kLanes; ++i)
      lanes.push_back(*index.add_lane(i % 5, i < 5 ? 1.0F : 0.75F));
    // A tree of texts: 6 beginnings, each with 5 ends.
    std::vector<std::vector<BlockKey>> texts;
    for (uint64_t i = 0; i < 6; ++i) {
      const auto begin = chain(i, 40 + 30 * i);
      for (uint64_t j = 0; j < 5; ++j) {
        auto text = begin;
        const auto end = chain(100 + j, 20 + 50 * j, begin.back());
        text.insert(text.end(), end.begin(), end.end());
        texts.push_back(std::move(text));
      }
    }
    for (int step = 0; step < 3000; ++step) {
      const uint32_t lane = random() % kLanes;
      const auto& text = texts[random() % texts.size()];
      const size_t length = random() % (text.size() + 1);
      const uint32_t kind = random() % 20;
      (void)index.sweep(random() % 8);
      if (kind == 0) {
        index.retire_lane(lanes[lane]);
        lanes[lane] = *index.add_lane(lane % 5, lane < 5 ? 1.0F : 0.75F);
        model[lane].clear();
      } else if (kind < 10) {
        for (size_t i = 0; i < length; ++i) {
          if (model[lane].insert(text[i]).second)
            (void)index.insert(lanes[lane], text[i] + lane, text[i]);
        }
      } else if (kind < 14) {
        // Everything below a point of the text, wherever it branches: leaves first or not.
        std::set<BlockKey> gone;
        for (const auto& other : texts) {
          const bool same =
              length < other.size() && length < text.size() && other[length] == text[length];
          for (size_t i = length; same && i < other.size(); ++i) gone.insert(other[i]);
        }
        for (const BlockKey key : gone) {
          const bool there = model[lane].erase(key) > 0;
          ASSERT_EQ(index.remove(lanes[lane], key + lane), there);
        }
      } else {
        std::map<uint32_t, std::pair<int32_t, float>> expected;
        for (uint32_t group = 0; group < 5; ++group) {
          int32_t blocks = 0;
          float credit = 0;
          for (const BlockKey key : text) {
            const bool first = model[group].contains(key);
            const bool second = group < 2 && model[group + 5].contains(key);
            if (!first && !second) break;
            ++blocks;
            credit += first ? 1.0F : 0.75F;
          }
          if (blocks > 0) expected[group] = {blocks, credit};
        }
        ASSERT_EQ(told(index.match_exactly(text)), expected) << seed << " " << step;
        ASSERT_EQ(told(index.match(text)), expected) << seed << " " << step;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::router
