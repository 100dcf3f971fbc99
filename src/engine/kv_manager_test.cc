#include "engine/kv_manager.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

class KvManagerTest : public ::testing::Test {
 protected:
  static constexpr int kPages = 10;
  KvManagerTest() : memory_(kPages * 1024) {
    arena_.base = memory_.data();
    arena_.stride = 1024;
    arena_.page_count = kPages;
    arena_.layout = ops::PageLayout{ops::KvDtype::kF32, ops::kCpuLayoutId, 1, 1, 8, 8};
    manager_.emplace(
        arena_, KvManagerOptions{.lineage = "m", .index_bytes = 1 << 20, .first_generation = 1});
  }
  static std::vector<int32_t> tokens(int count, int first = 0) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    std::iota(out.begin(), out.end(), first);
    return out;
  }
  std::vector<std::byte> memory_;
  ops::PageArenaView arena_;
  std::optional<KvManager> manager_;
};

TEST_F(KvManagerTest, ReusesComputedBlocksOfPromptAndOutput) {
  auto& kv = *manager_;
  auto prompt = tokens(12);
  EXPECT_EQ(kv.admit(1, prompt, {}, 0), 0);
  kv.computed(1, prompt, 12);
  auto all = tokens(20);
  ASSERT_TRUE(kv.extend(1, 20));
  kv.computed(1, all, 19);
  kv.release(1);
  EXPECT_EQ(kv.used_pages(), 0);
  EXPECT_EQ(kv.cached_pages(), 2) << "the first two blocks are full; the third was never";
  EXPECT_EQ(kv.admit(2, tokens(40), {}, 0), 16) << "also the block that decode generated";
  EXPECT_EQ(kv.admit(3, tokens(16), {}, 0), 8) << "the last token is always computed";
}

TEST_F(KvManagerTest, AnotherTenantSeesNothing) {
  auto& kv = *manager_;
  (void)kv.admit(1, tokens(16), {.salt = "a"}, 0);
  kv.computed(1, tokens(16), 16);
  EXPECT_EQ(kv.admit(2, tokens(16), {.salt = "b"}, 0), 0);
}

TEST_F(KvManagerTest, EvictsIdleBlocksOnlyAndCountsThem) {
  auto& kv = *manager_;
  (void)kv.admit(1, tokens(40), {}, 0);
  kv.computed(1, tokens(40), 40);
  EXPECT_FALSE(kv.admit(2, tokens(48, 1000), {}, 0)) << "five pages are in use";
  EXPECT_EQ(kv.used_pages(), 5) << "a refused admission takes nothing";
  kv.release(1);
  EXPECT_EQ(kv.admit(2, tokens(48, 1000), {}, 0), 0);
  EXPECT_EQ(kv.cached_pages(), 4) << "one cached block made room";
  EXPECT_EQ(kv.evictions(), 1U);
  EXPECT_EQ(kv.admit(3, tokens(40), {}, 0), std::nullopt);
}

TEST_F(KvManagerTest, HeadroomStaysObtainable) {
  EXPECT_FALSE(manager_->admit(1, tokens(64), {}, 3));
  EXPECT_TRUE(manager_->admit(1, tokens(64), {}, 2));
}

TEST_F(KvManagerTest, ReceivedBlocksArePublishedOnlyWhenProven) {
  auto& kv = *manager_;
  auto reservation = kv.reserve(1, tokens(20), {});
  ASSERT_TRUE(reservation);
  EXPECT_EQ(reservation->first_missing, std::vector<uint32_t>{0});
  EXPECT_EQ(kv.admit(2, tokens(20), {}, 0), 0) << "nothing is visible while it arrives";
  kv.release(2);
  kv.receive_failed(1);
  EXPECT_EQ(kv.free_pages(), kPages);
  ASSERT_TRUE(kv.reserve(3, tokens(20), {}));
  kv.receive_done(3, tokens(20));
  EXPECT_EQ(kv.reserve(4, tokens(20), {})->first_missing, std::vector<uint32_t>{2});
  kv.receive_failed(4);
  kv.release(3);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST_F(KvManagerTest, APromptThatNeedsEveryPageCanBeReceived) {
  auto& kv = *manager_;
  ASSERT_TRUE(kv.admit(1, tokens(8 * kPages - 1), {}, 0)) << "computed here it fits";
  kv.release(1);
  EXPECT_TRUE(kv.reserve(2, tokens(8 * kPages - 1), {}));
}

TEST_F(KvManagerTest, ReadersKeepPagesAfterTheSequenceIsGone) {
  auto& kv = *manager_;
  (void)kv.admit(1, tokens(16), {}, 0);
  const std::vector<PageTag> tags(kv.tags(1).begin(), kv.tags(1).end());
  kv.add_readers(tags);
  kv.release(1);
  EXPECT_EQ(kv.free_pages(), kPages - 2);
  kv.drop_readers(tags);
  EXPECT_EQ(kv.free_pages(), kPages);
  kv.drop_readers(tags);  // stale: refused
  EXPECT_EQ(kv.free_pages(), kPages);
}

TEST_F(KvManagerTest, RollBackCopiesAPublishedPageBeforeItIsWrittenAgain) {
  auto& kv = *manager_;
  (void)kv.admit(1, tokens(16), {}, 0);
  arena_.page(kv.pages(1, 16)[1])[5] = std::byte{42};
  kv.computed(1, tokens(16), 16);
  const int32_t published = kv.pages(1, 16)[1];
  ASSERT_TRUE(kv.truncate(1, 12, 11));
  EXPECT_NE(kv.pages(1, 16)[1], published);
  EXPECT_EQ(arena_.page(kv.pages(1, 16)[1])[5], std::byte{42});
  EXPECT_EQ(kv.cached_pages(), 1) << "the published one stays for others";
  kv.computed(1, tokens(16), 16);  // the same tokens again: a duplicate stays private
  kv.release(1);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST_F(KvManagerTest, RandomUseNeverLeaks) {
  std::mt19937 random(3);
  auto& kv = *manager_;
  for (int round = 0; round < 20000; ++round) {
    const SequenceId id = 1 + random() % 3;
    const auto prompt =
        tokens(1 + static_cast<int>(random() % 40), static_cast<int>(random() % 3) * 100);
    if (random() % 2) {
      if (kv.admit(id, prompt, {}, 0)) {
        if (random() % 2)
          kv.computed(id, prompt, static_cast<int32_t>(random() % (prompt.size() + 1)));
        kv.release(id);
      }
    } else if (auto reservation = kv.reserve(id, prompt, {})) {
      if (random() % 2) {
        kv.receive_done(id, prompt);
        kv.release(id);
      } else {
        kv.receive_failed(id);
      }
    }
    ASSERT_EQ(kv.used_pages(), 0);
    ASSERT_EQ(kv.free_pages() + kv.cached_pages(), kPages);
  }
}

}  // namespace
}  // namespace tandem::engine
