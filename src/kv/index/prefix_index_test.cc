#include "kv/index/prefix_index.h"

#include <numeric>

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

struct Chain {
  std::vector<int32_t> tokens;
  std::vector<ContentId> ids;
};

Chain chain(std::vector<int32_t> tokens, std::string_view salt = "") {
  const auto root = protocol::root_content_id("model", 2, salt);
  auto ids = protocol::content_ids(root, tokens, 2);
  return {std::move(tokens), std::move(ids)};
}

void insert_all(PrefixIndex& index, const Chain& c, int32_t first_page) {
  for (size_t i = 0; i < c.ids.size(); ++i) {
    (void)index.insert(i == 0 ? nullptr : &c.ids[i - 1], c.ids[i],
                       std::span(c.tokens).subspan(2 * i, 2),
                       PageTag{first_page + static_cast<int32_t>(i), 1});
  }
}

const auto kAny = [](PageTag) { return true; };

TEST(PrefixIndex, MatchesTheLongestPrefix) {
  PrefixIndex index(2, 1 << 20);
  insert_all(index, chain({1, 2, 3, 4, 5, 6}), 0);
  const Chain other = chain({1, 2, 3, 4, 9, 9, 5, 6});
  EXPECT_EQ(index.match(other.ids, other.tokens).pages.size(), 2U);
  const Chain none = chain({2, 1, 3, 4});
  EXPECT_EQ(index.matched_blocks(none.ids, none.tokens), 0U);
}

TEST(PrefixIndex, TenantsDoNotShareBlocks) {
  PrefixIndex index(2, 1 << 20);
  insert_all(index, chain({1, 2, 3, 4}, "a"), 0);
  const Chain b = chain({1, 2, 3, 4}, "b");
  EXPECT_EQ(index.matched_blocks(b.ids, b.tokens), 0U);
}

TEST(PrefixIndex, ComparesTokensNotOnlyIds) {
  PrefixIndex index(2, 1 << 20);
  const Chain c = chain({1, 2});
  insert_all(index, c, 0);
  const std::vector<int32_t> colliding{7, 8};  // pretends to have the same id
  EXPECT_TRUE(index.match(c.ids, colliding).pages.empty());
}

TEST(PrefixIndex, EvictsLeavesLeastRecentlyUsedFirst) {
  PrefixIndex index(2, 1 << 20);
  const Chain a = chain({1, 2, 3, 4});
  const Chain b = chain({5, 6, 7, 8});
  insert_all(index, a, 0);
  insert_all(index, b, 10);
  (void)index.match(a.ids, a.tokens);
  EXPECT_EQ(index.evict_one(kAny)->page, 11);
  EXPECT_EQ(index.evict_one(kAny)->page, 10);
  EXPECT_EQ(index.evict_one(kAny)->page, 1) << "the leaf before its parent";
  EXPECT_EQ(index.evict_one(kAny)->page, 0);
  EXPECT_FALSE(index.evict_one(kAny));
  EXPECT_EQ(index.bytes(), 0U);
}

TEST(PrefixIndex, SkipsWhatIsInUse) {
  PrefixIndex index(2, 1 << 20);
  insert_all(index, chain({1, 2}), 0);
  insert_all(index, chain({3, 4}), 1);
  EXPECT_EQ(index.evict_one([](PageTag tag) { return tag.page != 0; })->page, 1);
  EXPECT_FALSE(index.evict_one([](PageTag tag) { return tag.page != 0; }));
}

TEST(PrefixIndex, StaysUnderItsByteBound) {
  PrefixIndex index(2, 4000);
  std::vector<int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 0);
  insert_all(index, chain(tokens), 0);
  EXPECT_LE(index.bytes(), 4000U);
  EXPECT_GT(index.size(), 2U);
  const Chain more = chain({9, 9});
  EXPECT_EQ(index.insert(nullptr, more.ids[0], more.tokens, PageTag{99, 1}),
            PrefixIndex::Inserted::kFull);
}

TEST(PrefixIndex, RefusesOrphansAndDuplicates) {
  PrefixIndex index(2, 1 << 20);
  const Chain c = chain({1, 2, 3, 4});
  EXPECT_EQ(index.insert(&c.ids[0], c.ids[1], std::span(c.tokens).subspan(2), PageTag{0, 1}),
            PrefixIndex::Inserted::kNoParent);
  insert_all(index, c, 0);
  EXPECT_EQ(index.insert(nullptr, c.ids[0], std::span(c.tokens).first(2), PageTag{5, 1}),
            PrefixIndex::Inserted::kDuplicate);
}

}  // namespace
}  // namespace tandem::kv
