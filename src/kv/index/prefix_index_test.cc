#include "kv/index/prefix_index.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

constexpr int32_t kPages = 300;

struct Chain {
  std::vector<int32_t> tokens;
  std::vector<ContentId> ids;
};

Chain chain(std::vector<int32_t> tokens, std::string_view salt = "") {
  const auto root = protocol::root_content_id("model", 2, salt);
  auto ids = protocol::content_ids(root, tokens, 2);
  return {std::move(tokens), std::move(ids)};
}

Chain counting(int blocks, int first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(2 * blocks));
  std::iota(tokens.begin(), tokens.end(), first);
  return chain(std::move(tokens));
}

PrefixIndex make(std::vector<int32_t> windows = {0}, size_t max_bytes = 1 << 20) {
  return PrefixIndex({.block_tokens = 2, .windows = std::move(windows), .page_count = kPages},
                     max_bytes);
}

// Blocks of `c` in pages first_page and on, [block][group].
void insert_all(PrefixIndex& index, const Chain& c, int32_t first_page, size_t groups = 1) {
  std::vector<PageTag> adopted;
  int32_t page = first_page;
  for (size_t i = 0; i < c.ids.size(); ++i) {
    std::vector<PageTag> pages;
    pages.reserve(groups);
    for (size_t group = 0; group < groups; ++group) pages.push_back({page++, 1});
    (void)index.insert(i == 0 ? nullptr : &c.ids[i - 1], c.ids[i],
                       std::span(c.tokens).subspan(2 * i, 2), pages, adopted);
  }
}

void idle(PrefixIndex& index, std::initializer_list<int32_t> pages, bool passed = false) {
  for (const int32_t page : pages) index.set_idle(page, true, passed);
}

std::vector<int32_t> evict(PrefixIndex& index) {
  std::vector<PageTag> given_back;
  std::vector<int32_t> pages;
  if (index.evict_page(given_back)) {
    for (const PageTag tag : given_back) pages.push_back(tag.page);
  }
  return pages;
}

using Pages = std::vector<int32_t>;

TEST(PrefixIndex, MatchesTheLongestPrefix) {
  PrefixIndex index = make();
  insert_all(index, chain({1, 2, 3, 4, 5, 6}), 0);
  const Chain other = chain({1, 2, 3, 4, 9, 9, 5, 6});
  EXPECT_EQ(index.match(other.ids, other.tokens).blocks, 2U);
  const Chain none = chain({2, 1, 3, 4});
  EXPECT_EQ(index.match(none.ids, none.tokens).blocks, 0U);
}

TEST(PrefixIndex, TenantsDoNotShareBlocks) {
  PrefixIndex index = make();
  insert_all(index, chain({1, 2, 3, 4}, "a"), 0);
  const Chain b = chain({1, 2, 3, 4}, "b");
  EXPECT_EQ(index.match(b.ids, b.tokens).blocks, 0U);
}

TEST(PrefixIndex, ComparesTokensNotOnlyIds) {
  PrefixIndex index = make();
  const Chain c = chain({1, 2});
  insert_all(index, c, 0);
  const std::vector<int32_t> colliding{7, 8};  // pretends to have the same id
  EXPECT_TRUE(index.match(c.ids, colliding).pages.empty());
  std::vector<PageTag> adopted;
  const PageTag page{5, 1};
  EXPECT_EQ(index.insert(nullptr, c.ids[0], colliding, std::span(&page, 1), adopted),
            PrefixIndex::Inserted::kCollision);
  EXPECT_TRUE(adopted.empty());
}

// Ids of eight bits collide all the time. A block is used only after exactly the tokens, from the
// first on, after which it was computed.
TEST(PrefixIndex, IdsThatCollideNeverLeadToAnotherPrefixsPages) {
  std::mt19937 random(7);
  size_t hits = 0;
  size_t collisions = 0;
  for (int round = 0; round < 200; ++round) {
    PrefixIndex index = make();
    std::vector<std::vector<int32_t>> computed_after(kPages);  // by page
    const auto draw = [&] {
      std::vector<int32_t> tokens(2 + 2 * (random() % 5));
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 2);
      Chain made = chain(std::move(tokens));
      for (ContentId& id : made.ids) {
        for (size_t i = 1; i < id.bytes.size(); ++i) id.bytes[i] = {};
        id.bytes[0] &= std::byte{0x1F};
      }
      return made;
    };
    for (int32_t page = 0; page < kPages / 2;) {
      const Chain c = draw();
      for (size_t i = 0; i < c.ids.size(); ++i, ++page) {
        computed_after[static_cast<size_t>(page)].assign(c.tokens.begin(),
                                                         c.tokens.begin() + 2 * (i + 1));
        std::vector<PageTag> adopted;
        const PageTag tag{page, 1};
        const auto inserted =
            index.insert(i == 0 ? nullptr : &c.ids[i - 1], c.ids[i],
                         std::span(c.tokens).subspan(2 * i, 2), std::span(&tag, 1), adopted);
        collisions += inserted == PrefixIndex::Inserted::kCollision ? 1 : 0;
        if (inserted == PrefixIndex::Inserted::kCollision ||
            inserted == PrefixIndex::Inserted::kNoParent)
          break;  // as whoever computes does: nothing below can be told apart
      }
    }
    for (int query = 0; query < 50; ++query) {
      const Chain c = draw();
      const auto match = index.match(c.ids, c.tokens);
      for (size_t i = 0; i < match.blocks; ++i, ++hits) {
        const std::vector<int32_t> prefix(c.tokens.begin(), c.tokens.begin() + 2 * (i + 1));
        ASSERT_EQ(computed_after[static_cast<size_t>(match.pages[i].page)], prefix) << round;
      }
    }
  }
  EXPECT_GT(hits, 1000U);
  EXPECT_GT(collisions, 1000U);
}

TEST(PrefixIndex, EvictsTheLeastRecentlyUsedPageFirst) {
  PrefixIndex index = make();
  insert_all(index, chain({1, 2, 3, 4}), 0);
  insert_all(index, chain({5, 6, 7, 8}), 10);
  idle(index, {1, 0, 11, 10});
  index.set_idle(1, false, false);  // used again
  index.set_idle(0, false, false);
  idle(index, {1, 0});
  EXPECT_EQ(evict(index), Pages{11});
  EXPECT_EQ(evict(index), Pages{10});
  EXPECT_EQ(evict(index), Pages{1}) << "the leaf before its parent";
  EXPECT_EQ(evict(index), Pages{0});
  EXPECT_EQ(evict(index), Pages{});
  EXPECT_EQ(index.node_bytes(), 0U);
}

TEST(PrefixIndex, NeverEvictsWhatIsInUse) {
  PrefixIndex index = make();
  insert_all(index, chain({1, 2}), 0);
  insert_all(index, chain({3, 4}), 1);
  idle(index, {1});
  EXPECT_EQ(evict(index), Pages{1});
  EXPECT_EQ(evict(index), Pages{}) << "the other is in use";
}

// Its child is used in a private copy's stead, say: nobody could find the child any more.
TEST(PrefixIndex, WhatCannotBeReachedLeavesWithItsParent) {
  PrefixIndex index = make();
  const Chain c = counting(4);
  insert_all(index, c, 0);
  idle(index, {1});
  EXPECT_EQ(evict(index), (Pages{3, 2, 1}));
  EXPECT_TRUE(index.holds(0));
  EXPECT_FALSE(index.holds(3));
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 1U);
}

TEST(PrefixIndex, StaysUnderItsByteBound) {
  PrefixIndex index = make({0}, 4000);
  insert_all(index, counting(100), 0);
  EXPECT_LE(index.node_bytes(), 4000U);
  EXPECT_GT(index.size(), 2U);
  const Chain more = chain({9, 9});
  std::vector<PageTag> adopted;
  std::vector<PageTag> given_back;
  const PageTag page{250, 1};
  const auto insert = [&] {
    return index.insert(nullptr, more.ids[0], more.tokens, std::span(&page, 1), adopted);
  };
  EXPECT_EQ(insert(), PrefixIndex::Inserted::kFull);
  EXPECT_FALSE(index.evict_node(given_back)) << "all are in use";
  idle(index, {static_cast<int32_t>(index.size()) - 1});
  EXPECT_TRUE(index.evict_node(given_back));
  EXPECT_EQ(insert(), PrefixIndex::Inserted::kYes);
}

TEST(PrefixIndex, RefusesOrphansAndDuplicates) {
  PrefixIndex index = make();
  const Chain c = chain({1, 2, 3, 4});
  std::vector<PageTag> adopted;
  const PageTag page{0, 1};
  EXPECT_EQ(index.insert(&c.ids[0], c.ids[1], std::span(c.tokens).subspan(2), std::span(&page, 1),
                         adopted),
            PrefixIndex::Inserted::kNoParent);
  insert_all(index, c, 0);
  const PageTag other{5, 1};
  EXPECT_EQ(
      index.insert(nullptr, c.ids[0], std::span(c.tokens).first(2), std::span(&other, 1), adopted),
      PrefixIndex::Inserted::kDuplicate);
  EXPECT_TRUE(adopted.empty());
}

// Groups: one that sees everything, one that sees four positions (two blocks).
TEST(PrefixIndex, AHitNeedsOfAWindowOnlyWhatIsLiveThere) {
  PrefixIndex index = make({0, 4});
  const Chain c = counting(6);
  insert_all(index, c, 0, 2);
  auto match = index.match(c.ids, c.tokens);
  EXPECT_EQ(match.blocks, 6U);
  EXPECT_EQ(match.pages[2 * 3].page, 6) << "everything of the first group";
  EXPECT_EQ(match.pages[2 * 3 + 1].page, -1) << "a row at 12 sees 9 to 12 in the second";
  EXPECT_EQ(match.pages[2 * 4 + 1].page, 9);
  EXPECT_EQ(match.pages[2 * 5 + 1].page, 11);
  // Without the window's page of block 3 no row can be computed at 8 or 10, but at 12 and at 6.
  idle(index, {7}, /*passed=*/true);
  EXPECT_EQ(evict(index), Pages{7});
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 6U);
  EXPECT_EQ(index.match(std::span(c.ids).first(5), c.tokens).blocks, 3U);
  EXPECT_EQ(index.match(std::span(c.ids).first(4), c.tokens).blocks, 3U);
  EXPECT_EQ(index.present(c.ids, c.tokens).blocks, 6U);
}

TEST(PrefixIndex, PagesWhoseWindowPassedGoFirst) {
  PrefixIndex index = make({0, 4});
  insert_all(index, counting(3), 0, 2);
  idle(index, {5, 4});
  idle(index, {1}, /*passed=*/true);
  idle(index, {3}, /*passed=*/true);
  EXPECT_EQ(evict(index), Pages{1});
  EXPECT_EQ(evict(index), Pages{3});
  EXPECT_EQ(evict(index), Pages{5}) << "then the least recently used";
  EXPECT_EQ(evict(index), Pages{4});
  EXPECT_EQ(index.size(), 2U);
}

TEST(PrefixIndex, APageComesBackIntoItsGap) {
  PrefixIndex index = make({0, 4});
  const Chain c = counting(2);
  insert_all(index, c, 0, 2);
  idle(index, {3}, /*passed=*/true);
  EXPECT_EQ(evict(index), Pages{3});
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 1U);
  std::vector<PageTag> adopted;
  const std::vector<PageTag> pages{{20, 1}, {21, 1}};
  EXPECT_EQ(index.insert(&c.ids[0], c.ids[1], std::span(c.tokens).subspan(2), pages, adopted),
            PrefixIndex::Inserted::kYes);
  EXPECT_EQ(adopted, (std::vector<PageTag>{{21, 1}})) << "the other group's page is there";
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 2U);
}

TEST(PrefixIndex, WithWindowsOnlyOldBlocksStayAsAWayToYoungerOnes) {
  PrefixIndex index = make({4});
  const Chain c = counting(5);
  insert_all(index, c, 0);
  idle(index, {0, 1, 2}, /*passed=*/true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(evict(index), Pages{i});
  EXPECT_EQ(index.size(), 5U);
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 5U);
  idle(index, {4, 3});
  EXPECT_EQ(evict(index), Pages{4});
  EXPECT_EQ(evict(index), Pages{3});
  EXPECT_EQ(index.size(), 0U) << "nothing is left that they lead to";
}

// Many blocks in use or idle must not make an eviction slow.
TEST(PrefixIndex, EvictionDoesNotWalkOverWhatItLeaves) {
  constexpr int32_t kBlocks = 100000;
  PrefixIndex index({.block_tokens = 2, .windows = {0}, .page_count = kBlocks}, size_t{1} << 30);
  insert_all(index, counting(kBlocks), 0);
  for (int32_t page = kBlocks; page-- > kBlocks / 2;) index.set_idle(page, true, false);
  const auto start = std::chrono::steady_clock::now();
  int32_t evicted = 0;
  while (!evict(index).empty()) ++evicted;
  EXPECT_EQ(evicted, kBlocks / 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(PrefixIndex, ABlockCanBeTakenOutWithAllBelowIt) {
  PrefixIndex index = make();
  const Chain c = counting(4);
  insert_all(index, c, 10);
  insert_all(index, counting(1, 50), 20);
  idle(index, {12, 13});
  std::vector<PageTag> given_back;
  EXPECT_FALSE(index.remove(9, given_back)) << "a page without a block";
  ASSERT_TRUE(index.remove(11, given_back)) << "whether or not somebody uses it";
  std::vector<int32_t> pages;
  pages.reserve(given_back.size());
  for (const PageTag tag : given_back) pages.push_back(tag.page);
  std::ranges::sort(pages);
  EXPECT_EQ(pages, (Pages{11, 12, 13}));
  EXPECT_EQ(index.idle_pages(), 0);
  EXPECT_EQ(index.match(c.ids, c.tokens).blocks, 1U);
  given_back.clear();
  EXPECT_TRUE(index.remove(c.ids[0], given_back));
  EXPECT_FALSE(index.remove(c.ids[0], given_back));
  EXPECT_EQ(index.size(), 1U);
}

TEST(PrefixIndex, ShowsItsBlocks) {
  PrefixIndex index = make();
  const Chain c = counting(2);
  std::vector<PageTag> adopted;
  const std::vector<PageTag> pages = {{7, 3}};
  (void)index.insert(nullptr, c.ids[0], std::span(c.tokens).first(2), pages, adopted, 77);
  size_t seen = 0;
  index.visit([&](const PrefixIndex::Block& block) {
    ++seen;
    EXPECT_EQ(*block.id, c.ids[0]);
    EXPECT_EQ(block.tokens, 2U);
    EXPECT_EQ(block.children, 0U);
    EXPECT_EQ(block.scope, 77U);
    ASSERT_EQ(block.pages.size(), 1U);
    EXPECT_EQ(block.pages[0], (PageTag{7, 3}));
  });
  EXPECT_EQ(seen, 1U);
}

}  // namespace
}  // namespace tandem::kv
