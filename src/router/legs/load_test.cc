#include "router/legs/load.h"

#include <optional>
#include <random>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

TEST(LoadShare, RemovesExactlyWhatItAdded) {
  LoadLedger ledger;
  {
    LoadShare a = ledger.take(1, {1, 500, 600});
    LoadShare b = ledger.take(1, {1, 20, 30});
    EXPECT_EQ(ledger.of(1), (Load{2, 520, 630}));
    a.release_queued();
    a.release_queued();
    EXPECT_EQ(ledger.of(1), (Load{2, 20, 630}));
    a.release();
    a.release();
    EXPECT_EQ(ledger.of(1), (Load{1, 20, 30}));
    EXPECT_FALSE(ledger.idle());
  }
  EXPECT_TRUE(ledger.idle());
  EXPECT_EQ(ledger.of(99), Load());
}

TEST(LoadShare, AWorkersRanksAreCountedApartAndTogether) {
  LoadLedger ledger;
  {
    const LoadShare a = ledger.take(1, {1, 500, 600}, 0);
    LoadShare b = ledger.take(1, {1, 20, 30}, 3);
    EXPECT_EQ(ledger.of(1), (Load{2, 520, 630}));
    EXPECT_EQ(ledger.of(1, 3), (Load{1, 20, 30}));
    EXPECT_EQ(ledger.of(1, 1), Load());
    b.release_queued();
    EXPECT_EQ(ledger.of(1, 0), (Load{1, 500, 600}));
    EXPECT_EQ(ledger.of(1, 3), (Load{1, 0, 30}));
  }
  EXPECT_TRUE(ledger.idle());
}

TEST(LoadShare, MovingKeepsOneOwner) {
  LoadLedger ledger;
  LoadShare a = ledger.take(0, {1, 1, 1});
  LoadShare b = std::move(a);
  a.release();  // NOLINT(bugprone-use-after-move): what was moved from owns nothing
  EXPECT_EQ(ledger.of(0).running, 1);
  b = ledger.take(0, {1, 5, 5});
  EXPECT_EQ(ledger.of(0), (Load{1, 5, 5})) << "assigning drops what was held";
  b.release();
  EXPECT_TRUE(ledger.idle());
}

TEST(LoadShare, RandomUseEndsAtZero) {
  LoadLedger ledger;
  std::mt19937 random(3);
  {
    std::vector<std::optional<LoadShare>> shares(50);
    for (int i = 0; i < 20000; ++i) {
      auto& share = shares[random() % shares.size()];
      switch (random() % 4) {
        case 0:
          share = ledger.take(random() % 5, {1, static_cast<int64_t>(random() % 1000), 7});
          break;
        case 1:
          share.reset();
          break;
        case 2:
          if (share) share->release_queued();
          break;
        default:
          std::swap(share, shares[random() % shares.size()]);
      }
      for (uint32_t worker = 0; worker < 5; ++worker) ASSERT_GE(ledger.of(worker).queued_tokens, 0);
    }
  }
  EXPECT_TRUE(ledger.idle());
}

}  // namespace
}  // namespace tandem::router
