#include "kv/manager/kv_manager.h"

#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

class KvManagerTest : public ::testing::Test {
 protected:
  static constexpr int kPages = 10;
  static constexpr size_t kPageBytes = 1024;
  KvManagerTest() : memory_(kPages * kPageBytes) {
    manager_.emplace(
        KvManagerOptions{
            .page_count = kPages, .block_tokens = 8, .lineage = "m", .index_bytes = 1 << 20},
        page_memory());
  }
  std::byte* page(int32_t index) {
    return memory_.data() + static_cast<size_t>(index) * kPageBytes;
  }
  PageMemory page_memory() {
    return {.copy = [this](int32_t from, int32_t to) {
      std::memcpy(page(to), page(from), kPageBytes);
    }};
  }
  static std::vector<int32_t> tokens(int count, int first = 0) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    std::iota(out.begin(), out.end(), first);
    return out;
  }
  std::vector<std::byte> memory_;
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

// Hashing a long prompt again before every pass would cost more than the passes.
TEST_F(KvManagerTest, TheIdsOfOneThatFindsNoRoomAreKeptUntilItIsInOrReleased) {
  auto& kv = *manager_;
  (void)kv.admit(1, tokens(16), {}, 0);
  kv.computed(1, tokens(16), 16);
  kv.release(1);
  ASSERT_TRUE(kv.admit(2, tokens(64, 1000), {}, 0));
  const auto prompt = tokens(40);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(kv.admit(3, prompt, {}, 0));
    EXPECT_FALSE(kv.reserve(4, prompt, {}));
  }
  EXPECT_EQ(kv.may_come(), 2U);
  kv.release(4);
  EXPECT_EQ(kv.may_come(), 1U);
  kv.release(2);
  EXPECT_EQ(kv.admit(3, prompt, {}, 0), 16) << "the first blocks are still cached";
  EXPECT_EQ(kv.may_come(), 0U);
  kv.computed(3, prompt, 40);
  kv.release(3);
  EXPECT_EQ(kv.admit(5, tokens(48), {}, 0), 40) << "published under the same ids";
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

TEST_F(KvManagerTest, PagesThatAStrangerMayStillWriteAreNeverUsedAgain) {
  auto& kv = *manager_;
  ASSERT_TRUE(kv.reserve(1, tokens(20), {}));
  kv.receive_failed(1, /*may_be_written=*/true);
  EXPECT_EQ(kv.unfenced_pages(), 3);
  EXPECT_EQ(kv.used_pages(), 3);
  EXPECT_FALSE(kv.admit(2, tokens(80, 100), {}, 0));
  EXPECT_FALSE(kv.could_fit(80)) << "nor ever";
  EXPECT_TRUE(kv.could_fit(56));
  EXPECT_TRUE(kv.admit(3, tokens(56, 100), {}, 0));
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
  page(kv.pages(1, 16)[1])[5] = std::byte{42};
  kv.computed(1, tokens(16), 16);
  const int32_t published = kv.pages(1, 16)[1];
  ASSERT_TRUE(kv.truncate(1, 12, 11));
  EXPECT_NE(kv.pages(1, 16)[1], published);
  EXPECT_EQ(page(kv.pages(1, 16)[1])[5], std::byte{42});
  EXPECT_EQ(kv.cached_pages(), 1) << "the published one stays for others";
  kv.computed(1, tokens(16), 16);  // the same tokens again: a duplicate stays private
  kv.release(1);
  EXPECT_EQ(kv.used_pages(), 0);
}

// Two groups, the second with a window of 16 tokens: two blocks.
class WindowTest : public KvManagerTest {
 protected:
  void start(int32_t pages, int32_t rows_in_flight = 8) {
    memory_.assign(static_cast<size_t>(pages) * kPageBytes, std::byte{});
    manager_.emplace(KvManagerOptions{.page_count = pages,
                                      .block_tokens = 8,
                                      .lineage = "m",
                                      .windows = {0, 16},
                                      .rows_in_flight = rows_in_flight,
                                      .roll_back_tokens = 8},
                     page_memory());
  }
  // Computes `prompt` in passes of eight rows; the most pages in use meanwhile.
  int32_t compute(SequenceId id, const std::vector<int32_t>& prompt, int32_t from) {
    int32_t most = 0;
    const auto size = static_cast<int32_t>(prompt.size());
    for (int32_t end = from; end < size;) {
      end = std::min(end + 8, size);
      EXPECT_TRUE(manager_->extend(id, end));
      most = std::max(most, manager_->used_pages());
      manager_->computed(id, prompt, end);
    }
    return most;
  }
};

// 24 blocks in two groups are 48 pages; 30 do.
TEST_F(WindowTest, HoldsAtOnceWhatIsLive) {
  start(30);
  auto& kv = *manager_;
  EXPECT_EQ(kv.demand().peak(24 * 8), 24U + 5U) << "15 + 8 behind, 8 in flight: 31 tokens";
  EXPECT_EQ(kv.demand().longest(30, 100000), 25 * 8);
  const auto prompt = tokens(24 * 8);
  ASSERT_EQ(kv.admit(1, prompt, {}, 0), 0);
  EXPECT_EQ(kv.used_pages(), 24) << "the window's pages come as passes are planned";
  EXPECT_LE(compute(1, prompt, 0), 29);
  EXPECT_EQ(kv.used_pages(), 24 + 3) << "rolled back eight tokens, a row at 184 sees from 169";
  EXPECT_EQ(kv.windows_passed(), 21U);
  const auto pages = kv.pages(1, 24 * 8);
  EXPECT_EQ(pages[2 * 20 + 1], -1);
  EXPECT_GE(pages[2 * 21 + 1], 0);
  EXPECT_GE(pages[2 * 20], 0);
  kv.release(1);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST_F(WindowTest, WhatWasPromisedIsThereWhateverOthersDo) {
  start(40);
  auto& kv = *manager_;
  const auto long_one = tokens(20 * 8);
  ASSERT_TRUE(kv.admit(1, long_one, {}, 0));  // 20 pages, five promised
  EXPECT_FALSE(kv.admit(2, tokens(13 * 8, 1000), {}, 0)) << "13 and five promised";
  ASSERT_TRUE(kv.admit(2, tokens(10 * 8, 1000), {}, 0));
  EXPECT_FALSE(kv.extend(2, 12 * 8)) << "beyond its prompt nothing is promised: 12 + 2 of 10";
  EXPECT_LE(compute(1, long_one, 0), 40);
  (void)compute(2, tokens(10 * 8, 1000), 0);
  kv.release(1);
  EXPECT_TRUE(kv.extend(2, 12 * 8));
  kv.release(2);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST_F(WindowTest, AHitNeedsOnlyTheLiveRange) {
  start(60);
  auto& kv = *manager_;
  const auto prompt = tokens(12 * 8);
  ASSERT_TRUE(kv.admit(1, prompt, {}, 0));
  (void)compute(1, prompt, 0);
  kv.release(1);
  EXPECT_EQ(kv.cached_pages(), 24) << "pages of a window that passed stay cached";
  ASSERT_EQ(kv.admit(2, tokens(12 * 8 + 3), {}, 0), 12 * 8);
  EXPECT_EQ(kv.used_pages(), 13 + 2) << "of the window only two blocks";
  kv.release(2);
  // Something large comes: what passed goes first, and the prompt is still a whole hit.
  ASSERT_TRUE(kv.admit(3, tokens(38 * 8, 5000), {}, 0));
  EXPECT_EQ(kv.cached_pages(), 24 - 2);
  EXPECT_EQ(kv.admit(4, tokens(12 * 8 + 3), {}, 0), 12 * 8);
}

TEST_F(WindowTest, ARollBackBeyondWhatIsKeptIsRefused) {
  start(60);
  auto& kv = *manager_;
  auto all = tokens(80);
  ASSERT_TRUE(kv.admit(1, tokens(16), {}, 0));
  (void)compute(1, all, 0);
  EXPECT_TRUE(kv.truncate(1, 73, 72)) << "eight tokens";
  EXPECT_TRUE(kv.extend(1, 80));
  kv.computed(1, all, 80);
  EXPECT_FALSE(kv.truncate(1, 41, 40)) << "the row at 40 sees from 25 on";
}

TEST_F(WindowTest, AHandoffReservesAndWantsOnlyTheLiveRange) {
  start(60);
  auto& kv = *manager_;
  const auto prompt = tokens(12 * 8 + 4);
  auto first = kv.reserve(1, prompt, {});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->first_missing, (std::vector<uint32_t>{0, 10})) << "a row at 100 sees from 85";
  EXPECT_EQ(kv.used_pages(), 13 + 3);
  EXPECT_EQ(first->pages[2 * 9 + 1].page, -1);
  kv.receive_done(1, prompt);
  kv.release(1);
  // The full group's blocks are here; of the window only what the first handoff brought.
  const auto more = tokens(16 * 8);
  auto second = kv.reserve(2, more, {});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->first_missing, (std::vector<uint32_t>{12, 14}));
  kv.receive_done(2, more);
  kv.release(2);
  auto third = kv.reserve(3, tokens(11 * 8), {});
  ASSERT_TRUE(third);
  EXPECT_EQ(third->first_missing, (std::vector<uint32_t>{11, 9})) << "the window's block 9 is not";
  kv.receive_failed(3);
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

TEST_F(KvManagerTest, NeitherAMixedUpTableNorAQuarantinedPageIsPublished) {
  const auto tracker =
      make_tracker({.level = IntegrityLevel::kTags, .page_count = kPages, .block_tokens = 8});
  manager_.emplace(KvManagerOptions{.page_count = kPages,
                                    .block_tokens = 8,
                                    .lineage = "m",
                                    .planted = {.kind = KvFault::kSwapPages}},
                   page_memory(), tracker.get());
  auto& kv = *manager_;
  ASSERT_TRUE(kv.admit(1, tokens(16), {}, 0));
  ASSERT_TRUE(kv.admit(2, tokens(16, 100), {}, 0));
  ASSERT_TRUE(kv.extend(1, 16));  // planted here; then passes that were checked before come back
  kv.computed(1, tokens(16), 16);
  kv.computed(2, tokens(16, 100), 16);
  EXPECT_EQ(kv.index().size(), 0U);
  kv.release(1);
  kv.release(2);
  ASSERT_TRUE(kv.admit(3, tokens(16), {}, 0));
  ASSERT_TRUE(kv.quarantine(kv.pages(3, 16)[0]));
  kv.computed(3, tokens(16), 16);
  kv.release(3);
  EXPECT_EQ(kv.cached_pages(), 0);
  EXPECT_EQ(kv.free_pages(), kPages - 1);
  EXPECT_FALSE(kv.admit(4, tokens(8 * kPages, 500), {}, 0));
  EXPECT_TRUE(kv.admit(5, tokens(8 * (kPages - 1), 500), {}, 0));
  manager_.reset();
}

}  // namespace
}  // namespace tandem::kv
