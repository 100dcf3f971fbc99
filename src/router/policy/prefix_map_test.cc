#include "router/policy/prefix_map.h"

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

std::vector<protocol::ContentId> chain(int seed, int blocks,
                                       const protocol::ContentId* parent = nullptr) {
  std::vector<int32_t> tokens(16, seed);
  protocol::ContentId id = parent == nullptr ? protocol::root_content_id("model", 16, "") : *parent;
  std::vector<protocol::ContentId> ids;
  for (int i = 0; i < blocks; ++i) ids.push_back(id = protocol::next_content_id(id, tokens));
  return ids;
}

TEST(PrefixMap, MatchesTheLeadingBlocksOfEachWorker) {
  PrefixMap map(1 << 20);
  const auto a = chain(1, 10);
  map.insert(std::span(a).first(4), 0);
  map.insert(a, 2);
  EXPECT_EQ(map.match(a, 3), (std::vector<int32_t>{4, 0, 10}));
  EXPECT_EQ(map.match(chain(2, 5), 3), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(map.match(a, 1), (std::vector<int32_t>{4}));
}

TEST(PrefixMap, AHoleEndsTheMatch) {
  PrefixMap map(1 << 20);
  const auto a = chain(1, 6);
  map.insert(std::span(a).subspan(2), 0);
  EXPECT_EQ(map.match(a, 1)[0], 0);
  map.insert(std::span(a).first(1), 0);
  EXPECT_EQ(map.match(a, 1)[0], 1);
}

TEST(PrefixMap, ANewEpochForgetsOneWorkerOnly) {
  PrefixMap map(1 << 20);
  const auto a = chain(1, 5);
  const auto b = chain(2, 5);
  map.insert(a, 0);
  map.insert(a, 1);
  map.insert(b, 0);
  map.clear_worker(0);
  EXPECT_EQ(map.match(a, 2), (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(map.blocks(), 5U);
  map.clear_worker(1);
  EXPECT_EQ(map.blocks(), 0U);
  EXPECT_EQ(map.bytes(), 0U);
}

TEST(PrefixMap, StaysWithinItsBytesAndDropsTheLeastRecentlyUsed) {
  PrefixMap map(20000);
  const auto kept = chain(0, 10);
  map.insert(kept, 0);
  for (int i = 1; i < 200; ++i) {
    map.insert(chain(i, 10), 0);
    EXPECT_LE(map.bytes(), 20000U);
    EXPECT_EQ(map.match(kept, 1)[0], 10) << "used every time, so never the oldest";
  }
  EXPECT_EQ(map.match(chain(1, 10), 1)[0], 0);
}

TEST(PrefixMap, ChainsAreEvictedFromTheirEnd) {
  PrefixMap map(6000);
  const auto a = chain(1, 10);
  map.insert(a, 0);
  map.insert(chain(2, 25), 0);
  const int32_t held = map.match(a, 1)[0];
  EXPECT_EQ(map.blocks(), 25U + static_cast<size_t>(held))
      << "what is left of the chain can still be matched";
}

TEST(PrefixMap, AgreesWithAPlainModelOnRandomUse) {
  PrefixMap map(1 << 30);
  std::map<std::string, std::set<WorkerId>> model;
  std::mt19937 random(7);
  for (int step = 0; step < 3000; ++step) {
    auto ids = chain(static_cast<int>(random() % 5), static_cast<int>(random() % 6));
    const auto tail = chain(static_cast<int>(random() % 5), static_cast<int>(random() % 6),
                            ids.empty() ? nullptr : &ids.back());
    ids.insert(ids.end(), tail.begin(), tail.end());
    const WorkerId worker = random() % 4;
    switch (random() % 8) {
      case 0:
        map.clear_worker(worker);
        for (auto& [id, workers] : model) workers.erase(worker);
        break;
      case 1:
      case 2:
      case 3:
        map.insert(ids, worker);
        for (const auto& id : ids) model[id.hex()].insert(worker);
        break;
      default: {
        std::vector<int32_t> expected(4, 0);
        for (WorkerId w = 0; w < 4; ++w) {
          for (const auto& id : ids) {
            if (!model[id.hex()].contains(w)) break;
            ++expected[w];
          }
        }
        ASSERT_EQ(map.match(ids, 4), expected) << step;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::router
