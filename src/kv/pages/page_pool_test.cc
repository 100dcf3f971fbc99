#include "kv/pages/page_pool.h"

#include <random>

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

TEST(PagePool, FreesOnlyWhenAllThreeCountsAreZero) {
  PagePool pool(1);
  const PageTag tag = *pool.allocate();
  ASSERT_TRUE(pool.add_writer(tag));
  ASSERT_TRUE(pool.add_reader(tag));
  EXPECT_TRUE(pool.drop_owner(tag));
  EXPECT_FALSE(pool.allocate());
  EXPECT_TRUE(pool.drop_writer(tag));
  EXPECT_FALSE(pool.allocate());
  EXPECT_TRUE(pool.drop_reader(tag));
  EXPECT_TRUE(pool.allocate());
}

TEST(PagePool, RefusesStaleGenerations) {
  PagePool pool(1);
  const PageTag old = *pool.allocate();
  EXPECT_TRUE(pool.drop_owner(old));
  const PageTag now = *pool.allocate();
  ASSERT_EQ(old.page, now.page);
  EXPECT_FALSE(pool.drop_owner(old));
  EXPECT_FALSE(pool.add_reader(old));
  EXPECT_FALSE(pool.publish(old));
  EXPECT_FALSE(pool.is_current(old));
  EXPECT_TRUE(pool.is_current(now));
}

TEST(PagePool, ATagOfAFreePageIsStaleAtOnce) {
  PagePool pool(2);
  const PageTag tag = *pool.allocate();
  EXPECT_TRUE(pool.drop_owner(tag));
  EXPECT_FALSE(pool.add_owner(tag));
  EXPECT_FALSE(pool.drop_owner(tag));
  EXPECT_EQ(pool.free_count(), 2);
}

TEST(PagePool, PublishesOnlyAfterProof) {
  PagePool pool(1);
  const PageTag tag = *pool.allocate();
  EXPECT_FALSE(pool.publish(tag));
  ASSERT_TRUE(pool.add_writer(tag));
  EXPECT_FALSE(pool.mark_verified(tag)) << "a writer may still change the bytes";
  EXPECT_TRUE(pool.drop_writer(tag));
  EXPECT_TRUE(pool.mark_verified(tag));
  EXPECT_FALSE(pool.add_writer(tag)) << "verified bytes are final";
  EXPECT_TRUE(pool.publish(tag));
  EXPECT_FALSE(pool.publish(tag));
}

TEST(PagePool, AnnouncesTheGenerationBeforeHandingOutThePage) {
  std::vector<PageTag> seen;
  PagePool pool(
      1, [&](int32_t page, uint64_t generation) { seen.push_back({page, generation}); }, 100);
  const PageTag tag = *pool.allocate();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0], tag);
  EXPECT_EQ(tag.generation, 100U);
}

// Random operations against a model that only knows the three counts.
TEST(PagePool, RandomOperationsNeverLeakOrReuseTooEarly) {
  std::mt19937 random(7);
  PagePool pool(8);
  struct Held {
    PageTag tag;
    int owners, readers, writers;
  };
  std::vector<Held> held;
  for (int step = 0; step < 20000; ++step) {
    const unsigned choice = random() % 7;
    if (choice == 0) {
      if (auto tag = pool.allocate()) {
        for (const auto& other : held)
          ASSERT_NE(other.tag.page, tag->page) << "handed out while in use";
        held.push_back({*tag, 1, 0, 0});
      } else {
        ASSERT_EQ(held.size(), 8U);
      }
      continue;
    }
    if (held.empty()) continue;
    const size_t at = random() % held.size();
    Held& page = held[at];
    switch (choice) {
      case 1:
        page.owners += pool.add_owner(page.tag);
        break;
      case 2:
        page.readers += pool.add_reader(page.tag);
        break;
      case 3:
        page.writers += pool.add_writer(page.tag);
        break;
      case 4:
        ASSERT_EQ(pool.drop_owner(page.tag), page.owners > 0);
        page.owners -= page.owners > 0;
        break;
      case 5:
        ASSERT_EQ(pool.drop_reader(page.tag), page.readers > 0);
        page.readers -= page.readers > 0;
        break;
      default:
        ASSERT_EQ(pool.drop_writer(page.tag), page.writers > 0);
        page.writers -= page.writers > 0;
        break;
    }
    if (page.owners + page.readers + page.writers == 0)
      held.erase(held.begin() + static_cast<long>(at));
    ASSERT_EQ(pool.free_count(), 8 - static_cast<int>(held.size()));
  }
}

TEST(PagePool, AQuarantinedPageNeverComesBack) {
  PagePool pool(8);
  pool.set_max_quarantined(3);
  const PageTag used = *pool.allocate();
  ASSERT_TRUE(pool.quarantine(used.page));
  EXPECT_FALSE(pool.quarantine(used.page)) << "once";
  EXPECT_TRUE(pool.is_current(used)) << "whoever uses it ends by himself";
  EXPECT_EQ(pool.lost_count(), 0);
  EXPECT_TRUE(pool.drop_owner(used));
  EXPECT_EQ(pool.state(used.page), PageState::kQuarantined);
  EXPECT_FALSE(pool.is_current(used));
  EXPECT_FALSE(pool.add_owner(used));
  ASSERT_TRUE(pool.quarantine(used.page == 5 ? 6 : 5)) << "a free page";
  EXPECT_EQ(pool.free_count(), 6);
  int taken = 0;
  while (const auto tag = pool.allocate()) {
    EXPECT_NE(tag->page, used.page);
    ++taken;
  }
  EXPECT_EQ(taken, 6);
  EXPECT_EQ(pool.lost_count(), 2);
}

TEST(PagePool, BeyondTheBoundAPageIsStillLost) {
  PagePool pool(8);
  pool.set_max_quarantined(1);
  EXPECT_TRUE(pool.quarantine(1));
  EXPECT_TRUE(pool.quarantine(2));
  EXPECT_EQ(pool.quarantined_count(), 2);
  EXPECT_EQ(pool.free_count(), 6);
}

TEST(PagePool, TellsEveryChange) {
  struct Recorder final : PageObserver {
    void on_page_event(PageTag tag, PageEvent event) override {
      seen.push_back(std::to_string(tag.page) + ":" + std::string(page_event_name(event)));
    }
    std::vector<std::string> seen;
  } recorder;
  PagePool pool(1);
  pool.set_observer(&recorder);
  const PageTag tag = *pool.allocate();
  EXPECT_TRUE(pool.mark_verified(tag));
  EXPECT_TRUE(pool.publish(tag));
  EXPECT_TRUE(pool.add_reader(tag));
  EXPECT_TRUE(pool.drop_owner(tag));
  EXPECT_TRUE(pool.drop_reader(tag));
  EXPECT_FALSE(pool.drop_reader(tag));
  EXPECT_EQ(recorder.seen, (std::vector<std::string>{"0:allocated", "0:verified", "0:published",
                                                     "0:reader_added", "0:owner_dropped",
                                                     "0:reader_dropped", "0:freed", "0:refused"}));
}

}  // namespace
}  // namespace tandem::kv
