#include "kv/handoff/receive_handoff.h"

#include <gtest/gtest.h>

#include "kv/handoff/handoff_test_support.h"

namespace tandem::kv {
namespace {

TEST(ReceiveHandoff, CoverageIsCheckedByLayerAndGroup) {
  const protocol::HandoffKey key{"h", 1, 5};
  for (const bool whole : {true, false}) {
    ReceiveHandoff receive("h", 1, kWindowShape, {});
    (void)receive.open(kStart);
    (void)receive.on_offer({key, prompt(12), "", 3, 2400}, kStart);
    const auto granted = receive.on_reserved({0, 2}, kStart);
    EXPECT_EQ(sent<protocol::GrantFrame>(granted)->first_missing, (std::vector<int32_t>{0, 2}));
    for (const uint32_t layer : {0U, 2U}) {
      (void)receive.on_push({key, layer, 0, tags(3)}, kStart);
      (void)receive.on_copied(layer, 0, 3, CopyResult::kIntact, kStart);
    }
    if (whole) {
      (void)receive.on_push({key, 1, 2, tags(1)}, kStart);
      (void)receive.on_copied(1, 2, 1, CopyResult::kIntact, kStart);
    }
    const auto actions =
        receive.on_commit({key, 3, {0, 2}, 3, 2400, {{.token = 1}}, 12, 0}, kStart);
    EXPECT_EQ(count<StartSequence>(actions), whole ? 1 : 0);
    EXPECT_EQ(count<ReleasePages>(actions), whole ? 0 : 1);
  }
  ReceiveHandoff receive("h", 1, kWindowShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({key, prompt(12), "", 3, 2400}, kStart);
  (void)receive.on_reserved({0, 2}, kStart);
  EXPECT_EQ(count<ReleasePages>(receive.on_push({key, 1, 1, tags(2)}, kStart)), 1)
      << "a block that this side has no page for";
}

TEST(ReceiveHandoff, RefusesATransferThatDoesNotCoverItsManifest) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  const protocol::HandoffKey key{"h", 1, 5};
  EXPECT_EQ(count<ReservePages>(receive.on_offer({key, prompt(8), "", 2, 1200}, kStart)), 1);
  (void)receive.on_reserved({0}, kStart);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    (void)receive.on_push({key, layer, 0, tags(2)}, kStart);
    (void)receive.on_copied(layer, 0, 2, CopyResult::kIntact, kStart);
  }
  const auto actions = receive.on_commit({key, 3, {0}, 2, 1200, {{.token = 1}}, 8, 0}, kStart);
  EXPECT_EQ(count<StartSequence>(actions), 0);
  EXPECT_EQ(count<ReleasePages>(actions), 1);
  EXPECT_EQ(count<ReceiveFinished>(actions), 1);
}

TEST(ReceiveHandoff, RefusesACommitWhoseTokensAreNotTheOffers) {
  const auto starts = [](uint32_t prompt_tokens, uint32_t cached_tokens) {
    ReceiveHandoff receive("h", 1, kShape, {});
    (void)receive.open(kStart);
    const protocol::HandoffKey key{"h", 1, 5};
    (void)receive.on_offer({key, prompt(7), "", 2, 1200}, kStart);
    (void)receive.on_reserved({2}, kStart);
    return count<StartSequence>(receive.on_commit(
        {key, 3, {2}, 2, 0, {{.token = 1}}, prompt_tokens, cached_tokens}, kStart));
  };
  EXPECT_EQ(starts(7, 4), 1);
  EXPECT_EQ(starts(8, 4), 0);
  EXPECT_EQ(starts(7, 8), 0);
  EXPECT_EQ(starts(7, UINT32_MAX), 0);
}

TEST(ReceiveHandoff, RefusesABlockPushedTwiceOrOutside) {
  for (const protocol::PushFrame& bad : {protocol::PushFrame{{"h", 1, 5}, 0, 0, tags(2)},
                                         protocol::PushFrame{{"h", 1, 5}, 3, 0, tags(1)},
                                         protocol::PushFrame{{"h", 1, 5}, 1, 1, tags(2)},
                                         protocol::PushFrame{{"h", 1, 5}, 0, 0, tags(1), {1, 2}}}) {
    ReceiveHandoff receive("h", 1, kShape, {});
    (void)receive.open(kStart);
    (void)receive.on_offer({{"h", 1, 5}, prompt(8), "", 2, 1200}, kStart);
    (void)receive.on_reserved({0}, kStart);
    (void)receive.on_push({{"h", 1, 5}, 0, 0, tags(2)}, kStart);
    (void)receive.on_copied(0, 0, 2, CopyResult::kIntact, kStart);
    EXPECT_EQ(count<ReleasePages>(receive.on_push(bad, kStart)), 1);
    EXPECT_TRUE(receive.finished());
  }
}

TEST(ReceiveHandoff, APushOfWhichOnlyAPartIsNewLeavesNothingToWaitFor) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(8), "", 2, 1200}, kStart);
  (void)receive.on_reserved({0}, kStart);
  (void)receive.on_push({{"h", 1, 5}, 0, 1, tags(1)}, kStart);
  EXPECT_EQ(count<ReleasePages>(receive.on_push({{"h", 1, 5}, 0, 0, tags(2)}, kStart)), 0);
  EXPECT_EQ(count<ReleasePages>(receive.on_copied(0, 1, 1, CopyResult::kIntact, kStart)), 1);
  EXPECT_TRUE(receive.idle());
}

TEST(ReceiveHandoff, AGenerationMismatchEndsTheRequestNotTheProcess) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart);
  (void)receive.on_reserved({0}, kStart);
  (void)receive.on_push({{"h", 1, 5}, 0, 0, tags(1)}, kStart);
  const auto actions = receive.on_copied(0, 0, 1, CopyResult::kStale, kStart);
  EXPECT_EQ(count<ReleasePages>(actions), 1);
  EXPECT_NE(sent<protocol::AbortFrame>(actions), nullptr);
}

TEST(ReceiveHandoff, IgnoresFramesOfAnotherAttempt) {
  ReceiveHandoff receive("h", 2, kShape, {});
  (void)receive.open(kStart);
  EXPECT_TRUE(receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart).empty());
  (void)receive.on_offer({{"h", 2, 6}, prompt(4), "", 1, 600}, kStart);
  (void)receive.on_reserved({0}, kStart);
  EXPECT_TRUE(receive.on_push({{"h", 2, 5}, 0, 0, tags(1)}, kStart).empty()) << "an old nonce";
  EXPECT_FALSE(receive.finished());
}

TEST(ReceiveHandoff, WhatThePrefillSideSaysIsNeverTheClientsFault) {
  for (const uint32_t status : {0U, 200U, 409U, 499U, 5000U, 4000000000U}) {
    ReceiveHandoff receive("h", 1, kShape, {});
    (void)receive.open(kStart);
    for (const auto& action : receive.on_abort({{"h", 1, 0}, status, "handoff_closed", "closed"})) {
      if (const auto* finished = std::get_if<ReceiveFinished>(&action)) {
        EXPECT_EQ(finished->error->status, 502) << "said " << status;
        EXPECT_EQ(finished->error->code, "handoff_closed");
      }
    }
    EXPECT_TRUE(receive.finished());
  }
}

TEST(ReceiveHandoff, ReleasesPagesThatArriveAfterACancel) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart);
  EXPECT_EQ(count<ReceiveFinished>(receive.on_cancel(Error{499, "client_gone", ""})), 1);
  EXPECT_EQ(count<ReleasePages>(receive.on_reserved({0}, kStart)), 1);
}

TEST(ReceiveHandoff, KeepsItsPagesAndOwesTheAcknowledgementWhileCopiesAreUnderWay) {
  auto receive = copying();
  auto actions = receive.on_abort({{"h", 1, 5}, 504, "handoff_timeout", ""});
  EXPECT_EQ(count<ReceiveFinished>(actions), 1) << "the client learns at once";
  EXPECT_EQ(count<StopCopies>(actions), 1);
  EXPECT_TRUE(std::holds_alternative<StopCopies>(actions.back())) << "it may end everything";
  EXPECT_EQ(count<ReleasePages>(actions), 0);
  EXPECT_EQ(sent<protocol::AbortAckFrame>(actions), nullptr);
  EXPECT_TRUE(receive.finished());
  EXPECT_FALSE(receive.idle());
  EXPECT_TRUE(receive.on_copied(0, 0, 1, CopyResult::kFailed, kStart).empty());
  actions = receive.on_copied(0, 1, 1, CopyResult::kIntact, kStart);
  ASSERT_EQ(actions.size(), 2U);
  ASSERT_TRUE(std::holds_alternative<ReleasePages>(actions[0]));
  EXPECT_FALSE(std::get<ReleasePages>(actions[0]).may_be_written);
  EXPECT_NE(sent<protocol::AbortAckFrame>(actions), nullptr);
  EXPECT_TRUE(receive.idle());
}

TEST(ReceiveHandoff, WhatIsOwedToAPeerThatAbortsOverAndOverIsBounded) {
  auto receive = copying();
  for (int i = 0; i < 1000; ++i) (void)receive.on_abort({{"h", 1, 5}, 504, "handoff_timeout", ""});
  const auto actions = receive.on_copied(0, 0, 2, CopyResult::kFailed, kStart);
  EXPECT_LE(count<SendToPeer>(actions), 32);
  EXPECT_NE(sent<protocol::AbortAckFrame>(actions), nullptr);
  EXPECT_TRUE(receive.idle());
}

TEST(ReceiveHandoff, ItsOwnAbortIsSaidWhenNothingCopiesAnyMore) {
  auto receive = copying();
  auto actions = receive.on_cancel(Error{499, "client_gone", ""});
  EXPECT_EQ(sent<protocol::AbortFrame>(actions), nullptr);
  actions = receive.on_copied(0, 0, 2, CopyResult::kUnfenced, kStart);
  ASSERT_EQ(count<ReleasePages>(actions), 1);
  EXPECT_TRUE(std::get<ReleasePages>(actions[0]).may_be_written);
  EXPECT_NE(sent<protocol::AbortFrame>(actions), nullptr);
  EXPECT_TRUE(receive.idle());
}

TEST(ReceiveHandoff, NothingIsSaidToALostPeerButItsCopiesAreWaitedFor) {
  auto receive = copying();
  EXPECT_EQ(count<ReceiveFinished>(receive.on_peer_lost()), 1);
  EXPECT_FALSE(receive.idle());
  const auto actions = receive.on_copied(0, 0, 2, CopyResult::kFailed, kStart);
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<ReleasePages>(actions[0]));
}

TEST(ReceiveHandoff, ACommitWaitsForTheCopiesItCameBefore) {
  auto receive = copying();
  const protocol::HandoffKey key{"h", 1, 5};
  for (const uint32_t layer : {1U, 2U}) (void)receive.on_push({key, layer, 0, tags(2)}, kStart);
  EXPECT_TRUE(receive.on_commit({key, 3, {0}, 2, 1200, {{.token = 1}}, 8, 0}, kStart).empty());
  for (const uint32_t layer : {2U, 0U})
    EXPECT_TRUE(receive.on_copied(layer, 0, 2, CopyResult::kIntact, kStart).empty());
  EXPECT_EQ(count<StartSequence>(receive.on_copied(1, 0, 2, CopyResult::kIntact, kStart)), 1);
}

TEST(ReceiveHandoff, WithdrawsAReservationThatStillWaits) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart);
  EXPECT_EQ(count<ReleasePages>(receive.on_cancel(Error{499, "client_gone", ""})), 1);
  EXPECT_TRUE(receive.idle());
}

TEST(ReceiveHandoff, EveryWaitEnds) {
  for (int stage = 0; stage < 3; ++stage) {
    ReceiveHandoff receive("h", 1, kShape, {});
    (void)receive.open(kStart);
    if (stage > 0) (void)receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart);
    if (stage > 1) (void)receive.on_reserved({0}, kStart);
    EXPECT_EQ(count<ReceiveFinished>(receive.on_time(kStart + std::chrono::hours(1))), 1) << stage;
  }
}

}  // namespace
}  // namespace tandem::kv
