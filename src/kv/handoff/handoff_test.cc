#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "kv/handoff/peer_registry.h"
#include "kv/handoff/receive_handoff.h"
#include "kv/handoff/send_handoff.h"

namespace tandem::kv {
namespace {

const HandoffShape kShape{
    .block_tokens = 4, .page_bytes = 600, .windows = {0}, .layer_groups = {0, 0, 0}};
const TimePoint kStart{};

template <typename T, typename Actions>
int count(const Actions& actions) {
  return static_cast<int>(
      std::ranges::count_if(actions, [](const auto& a) { return std::holds_alternative<T>(a); }));
}

template <typename Frame>
const Frame* sent(const SendActions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      if (const auto* frame = std::get_if<Frame>(&send->frame)) return frame;
    }
  }
  return nullptr;
}

template <typename Frame>
const Frame* sent(const ReceiveActions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<SendToPeer>(&action)) {
      if (const auto* frame = std::get_if<Frame>(&send->frame)) return frame;
    }
  }
  return nullptr;
}

std::vector<protocol::PageTag> tags(int count) {
  std::vector<protocol::PageTag> out;
  out.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) out.push_back({i, static_cast<uint64_t>(100 + i)});
  return out;
}

std::vector<int32_t> prompt(int count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1);
  return out;
}

SendHandoff sender(OfferEstimate estimate = {}) {
  return SendHandoff("h", kShape, {}, estimate, kStart);
}

TEST(SendHandoff, PushesEachLayerOfEachBlockOnceAsItBecomesFinal) {
  auto send = sender();
  (void)send.on_admitted(prompt(10), "", "", tags(3), 0, kStart);
  auto actions = send.on_open(1, 1, 77, kStart);
  ASSERT_NE(sent<protocol::OfferFrame>(actions), nullptr);
  const protocol::HandoffKey key{"h", 1, 77};
  actions = send.on_grant(1, {key, {0}}, kStart);
  EXPECT_EQ(count<AcquireReaders>(actions), 1);
  EXPECT_EQ(sent<protocol::PushFrame>(actions), nullptr) << "nothing is final yet";
  actions = send.on_progress(0, 6, kStart);
  ASSERT_NE(sent<protocol::PushFrame>(actions), nullptr);
  EXPECT_EQ(sent<protocol::PushFrame>(actions)->pages.size(), 1U)
      << "six tokens fill one block of four";
  EXPECT_TRUE(send.on_progress(0, 6, kStart).empty());
  for (int layer = 0; layer < 3; ++layer) actions = send.on_progress(layer, 10, kStart);
  EXPECT_EQ(sent<protocol::CommitFrame>(actions), nullptr) << "the first token is not known yet";
  actions = send.on_prefill_done({{.token = 5}}, kStart);
  const auto* commit = sent<protocol::CommitFrame>(actions);
  ASSERT_NE(commit, nullptr);
  EXPECT_EQ(commit->bytes, 3U * 600U);
  actions = send.on_ack(1, {key}, kStart);
  EXPECT_EQ(count<ReleaseReaders>(actions), 1);
  EXPECT_EQ(count<SendFinished>(actions), 1);
  EXPECT_TRUE(send.idle());
}

// A peer's pages may travel in another form; the next one's, as they are.
TEST(SendHandoff, BytesAreThoseOfPagesAsTheyTravelToThePeer) {
  auto send = sender();
  (void)send.on_admitted(prompt(10), "", "", tags(3), 10, kStart);
  (void)send.on_prefill_done({{.token = 5}}, kStart);
  for (uint32_t attempt : {1U, 2U}) {
    const uint64_t page_bytes = attempt == 1 ? 300 : 600;
    auto actions = send.on_open(attempt, attempt, 77, kStart, attempt == 1 ? 300 : 0);
    ASSERT_NE(sent<protocol::OfferFrame>(actions), nullptr);
    EXPECT_EQ(sent<protocol::OfferFrame>(actions)->bytes, 3 * page_bytes);
    actions = send.on_grant(attempt, {{"h", attempt, 77}, {1}}, kStart);
    ASSERT_NE(sent<protocol::CommitFrame>(actions), nullptr);
    EXPECT_EQ(sent<protocol::CommitFrame>(actions)->bytes, 2 * page_bytes);
  }
  const auto actions = send.on_ack(2, {{"h", 2, 77}}, kStart);
  for (const auto& action : actions) {
    if (const auto* finished = std::get_if<SendFinished>(&action))
      EXPECT_EQ(finished->bytes_sent, 1200U);
  }
  EXPECT_EQ(count<SendFinished>(actions), 1);
}

TEST(SendHandoff, SendsOnlyWhatTheReceiverLacks) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_open(1, 1, 7, kStart);
  const auto actions = send.on_grant(1, {{"h", 1, 7}, {1}}, kStart);
  const auto* push = sent<protocol::PushFrame>(actions);
  ASSERT_NE(push, nullptr);
  EXPECT_EQ(push->first_block, 1U);
  EXPECT_EQ(push->pages.size(), 1U);
}

// Layers 0 and 2 see everything, layer 1 the last four tokens: at 12 that is position 9 on.
const HandoffShape kWindowShape{
    .block_tokens = 4, .page_bytes = 600, .windows = {0, 4}, .layer_groups = {0, 1, 0}};

TEST(SendHandoff, SendsOfAWindowOnlyWhatIsLiveAsItsPagesBecomeKnown) {
  SendHandoff send("h", kWindowShape, {}, {}, kStart);
  (void)send.on_admitted(prompt(12), "", "", {}, 0, kStart);
  auto actions = send.on_open(1, 1, 7, kStart);
  const auto* offer = sent<protocol::OfferFrame>(actions);
  ASSERT_NE(offer, nullptr);
  EXPECT_EQ(offer->blocks, 3U);
  EXPECT_EQ(offer->bytes, 4U * 600U) << "three pages and one";
  const auto pages = tags(6);  // [block][group]
  (void)send.on_pages(std::span(pages).first(4), kStart);
  actions = send.on_grant(1, {{"h", 1, 7}, {0, 2}}, kStart);
  ASSERT_EQ(count<AcquireReaders>(actions), 1);
  EXPECT_EQ(std::get<AcquireReaders>(actions[0]).pages,
            (std::vector<protocol::PageTag>{pages[0], pages[2]}));
  for (int layer = 0; layer < 3; ++layer) {
    actions = send.on_progress(layer, 8, kStart);
    EXPECT_EQ(count<SendFrame>(actions), layer == 1 ? 0 : 1) << "layer 1's two blocks pass";
  }
  actions = send.on_pages(std::span(pages).subspan(4), kStart);
  ASSERT_EQ(count<AcquireReaders>(actions), 1) << "readers before anything of them is pushed";
  EXPECT_EQ(std::get<AcquireReaders>(actions[0]).pages.size(), 2U);
  (void)send.on_progress(0, 12, kStart);
  actions = send.on_progress(1, 12, kStart);
  const auto* push = sent<protocol::PushFrame>(actions);
  ASSERT_NE(push, nullptr);
  EXPECT_EQ(push->first_block, 2U);
  EXPECT_EQ(push->pages, (std::vector<protocol::PageTag>{pages[5]}));
  (void)send.on_progress(2, 12, kStart);
  actions = send.on_prefill_done({{.token = 5}}, kStart);
  const auto* commit = sent<protocol::CommitFrame>(actions);
  ASSERT_NE(commit, nullptr);
  EXPECT_EQ(commit->bytes, 4U * 600U);
  EXPECT_EQ(commit->first_blocks, (std::vector<int32_t>{0, 2}));
}

TEST(SendHandoff, RefusesAGrantOfWhatHasPassed) {
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{0, 1}, {0}, {0, 2, 0}, {0, 4}, {-1, 2}}) {
    SendHandoff send("h", kWindowShape, {}, {}, kStart);
    (void)send.on_admitted(prompt(12), "", "", tags(6), 12, kStart);
    (void)send.on_open(1, 1, 7, kStart);
    const auto actions = send.on_grant(1, {{"h", 1, 7}, bad}, kStart);
    EXPECT_NE(sent<protocol::AbortFrame>(actions), nullptr);
    EXPECT_EQ(count<AcquireReaders>(actions), 0);
  }
}

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

TEST(SendHandoff, OffersAsLateAsTheTransferAllows) {
  EXPECT_TRUE(should_offer(1000, 1 << 30, {}));
  const OfferEstimate estimate{
      .prefill_tokens_per_second = 100, .link_bytes_per_second = 1e9, .margin_seconds = 0.5};
  EXPECT_FALSE(should_offer(1000, 1'000'000'000, estimate))
      << "10 s of prefill left, 1 s of transfer";
  EXPECT_TRUE(should_offer(150, 1'000'000'000, estimate));
  auto send = sender(estimate);
  (void)send.on_admitted(prompt(1000), "", "", tags(250), 0, kStart);
  EXPECT_TRUE(send.on_open(1, 1, 7, kStart).empty());
  for (int layer = 0; layer < 2; ++layer)
    EXPECT_TRUE(send.on_progress(layer, 1000, kStart).empty());
  EXPECT_NE(sent<protocol::OfferFrame>(send.on_progress(2, 1000, kStart)), nullptr);
}

TEST(SendHandoff, KeepsReadersUntilTheAbortIsAcknowledgedOrThePeerIsFenced) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_open(1, 1, 7, kStart);
  (void)send.on_grant(1, {{"h", 1, 7}, {0}}, kStart);
  auto actions = send.on_cancel(Error{499, "client_gone", "gone"}, kStart);
  EXPECT_EQ(count<ReleaseReaders>(actions), 0);
  EXPECT_EQ(count<SendFinished>(actions), 1);
  EXPECT_FALSE(send.idle());
  EXPECT_TRUE(send.on_abort_ack(1, {{"h", 1, 8}}, kStart).empty())
      << "another nonce acknowledges nothing";
  EXPECT_TRUE(send.on_abort_ack(2, {{"h", 1, 7}}, kStart).empty())
      << "another peer acknowledges nothing";
  EXPECT_TRUE(send.on_time(kStart + std::chrono::milliseconds(500)).empty());
  actions = send.on_time(kStart + std::chrono::seconds(5));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<FencePeer>(actions[0]))
      << "fenced before the readers are dropped";
  EXPECT_TRUE(std::holds_alternative<ReleaseReaders>(actions[1]));
  EXPECT_TRUE(send.idle());
}

TEST(SendHandoff, ALostPeerLeavesTheBlocksUnderALeaseForTheNextAttempt) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_prefill_done({{.token = 3}}, kStart);
  (void)send.on_open(1, 1, 7, kStart);
  (void)send.on_grant(1, {{"h", 1, 7}, {0}}, kStart);
  auto actions = send.on_peer_lost(1, kStart);
  EXPECT_EQ(count<ReleaseReaders>(actions), 1);
  EXPECT_EQ(count<SendFinished>(actions), 0);
  EXPECT_NE(sent<protocol::AbortFrame>(send.on_open(2, 1, 8, kStart)), nullptr)
      << "the same attempt is refused";
  EXPECT_NE(sent<protocol::OfferFrame>(send.on_open(2, 2, 9, kStart)), nullptr);
  actions = send.on_grant(2, {{"h", 2, 9}, {0}}, kStart);
  EXPECT_NE(sent<protocol::CommitFrame>(actions), nullptr);
}

TEST(SendHandoff, EveryWaitEnds) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_prefill_done({{.token = 3}}, kStart);
  auto actions = send.on_time(kStart + std::chrono::seconds(31));
  ASSERT_EQ(count<SendFinished>(actions), 1);
  EXPECT_TRUE(send.idle());
  EXPECT_NE(sent<protocol::AbortFrame>(send.on_open(1, 1, 1, kStart)), nullptr);
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

// A receiver with one layer of one block under way.
ReceiveHandoff copying(HandoffRanks ranks = {}) {
  ReceiveHandoff receive("h", 1, kShape, {}, ranks);
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(8), "", 2, 1200}, kStart);
  (void)receive.on_reserved({0}, kStart);
  (void)receive.on_push({{"h", 1, 5}, 0, 0, tags(2)}, kStart);
  return receive;
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

TEST(Handoff, ALongTransferRenewsItselfAndASilentOneEnds) {
  auto receive = copying();
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_prefill_done({{.token = 3}}, kStart);
  (void)send.on_open(1, 1, 5, kStart);
  (void)send.on_grant(1, {{"h", 1, 5}, {0}}, kStart);
  const protocol::HandoffKey key{"h", 1, 5};
  for (const uint32_t layer : {1U, 2U}) (void)receive.on_push({key, layer, 0, tags(2)}, kStart);
  (void)receive.on_commit({key, 3, {0}, 2, 1200, {{.token = 1}}, 8, 0}, kStart);
  TimePoint now = kStart;
  int renewals = 0;
  for (uint32_t i = 0; i < 5; ++i) {  // five of six blocks, 20 s each
    now += std::chrono::seconds(20);
    const auto actions = receive.on_copied(i / 2, i % 2, 1, CopyResult::kIntact, now);
    if (const auto* renew = sent<protocol::RenewFrame>(actions)) {
      ++renewals;
      send.on_renew(1, *renew, now);
    }
    EXPECT_TRUE(receive.on_time(now).empty());
    EXPECT_TRUE(send.on_time(now).empty()) << "alive after " << i << " blocks";
  }
  EXPECT_EQ(renewals, 5);
  send.on_renew(1, {{"h", 1, 6}}, now + std::chrono::seconds(29));
  EXPECT_NE(sent<protocol::AbortFrame>(send.on_time(now + std::chrono::seconds(31))), nullptr);
  EXPECT_EQ(count<StopCopies>(receive.on_time(now + std::chrono::seconds(31))), 1);
}

TEST(ReceiveHandoff, WithdrawsAReservationThatStillWaits) {
  ReceiveHandoff receive("h", 1, kShape, {});
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(4), "", 1, 600}, kStart);
  EXPECT_EQ(count<ReleasePages>(receive.on_cancel(Error{499, "client_gone", ""})), 1);
  EXPECT_TRUE(receive.idle());
}

TEST(SendHandoff, CountsAcknowledgementsByRank) {
  const protocol::HandoffKey key{"h", 1, 7};
  for (const bool aborted : {false, true}) {
    auto send = sender();
    (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
    (void)send.on_prefill_done({{.token = 3}}, kStart);
    (void)send.on_open(1, 1, 7, kStart);
    (void)send.on_grant(1, {key, {0}, 3}, kStart);
    if (aborted) (void)send.on_cancel(Error{499, "client_gone", ""}, kStart);
    const auto acknowledge = [&](uint32_t rank) {
      return count<ReleaseReaders>(aborted ? send.on_abort_ack(1, {key, rank}, kStart)
                                           : send.on_ack(1, {key, rank}, kStart));
    };
    for (const uint32_t rank : {2U, 2U, 0U, 63U, 64U, UINT32_MAX, 0U})
      EXPECT_EQ(acknowledge(rank), 0) << "rank " << rank;
    EXPECT_FALSE(send.idle());
    EXPECT_EQ(acknowledge(1), 1);
    EXPECT_TRUE(send.idle());
  }
}

TEST(SendHandoff, OneRanksAbortStopsTheOthersAndWaitsForThem) {
  const protocol::HandoffKey key{"h", 1, 7};
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_open(1, 1, 7, kStart);
  (void)send.on_grant(1, {key, {0}, 2}, kStart);
  auto actions = send.on_abort(1, {key, 502, "kv_transfer_failed", "", 1}, kStart);
  EXPECT_EQ(count<ReleaseReaders>(actions), 0);
  EXPECT_NE(sent<protocol::AbortFrame>(actions), nullptr);
  EXPECT_EQ(count<ReleaseReaders>(send.on_abort_ack(1, {key, 1}, kStart)), 0);
  EXPECT_EQ(count<ReleaseReaders>(send.on_abort_ack(1, {key, 0}, kStart)), 1);
}

TEST(SendHandoff, RefusesAGrantForNoRankOrTooMany) {
  for (const uint32_t ranks : {0U, 65U, UINT32_MAX}) {
    auto send = sender();
    (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
    (void)send.on_open(1, 1, 7, kStart);
    EXPECT_EQ(count<AcquireReaders>(send.on_grant(1, {{"h", 1, 7}, {0}, ranks}, kStart)), 0);
  }
}

TEST(SendHandoff, AnAbortWithoutANonceEndsOnlyWhatWasNotGranted) {
  for (const bool granted : {false, true}) {
    auto send = sender();
    (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
    (void)send.on_prefill_done({{.token = 3}}, kStart);
    (void)send.on_open(1, 1, 7, kStart);
    if (granted) (void)send.on_grant(1, {{"h", 1, 7}, {0}}, kStart);
    const auto actions = send.on_abort(1, {{"h", 1, 0}, 499, "", ""}, kStart);
    EXPECT_EQ(count<ReleaseReaders>(actions), 0);
    EXPECT_EQ(sent<protocol::AbortAckFrame>(actions)->key.nonce, 0U);
    EXPECT_EQ(count<SendFinished>(send.on_ack(1, {{"h", 1, 7}}, kStart)), granted ? 1 : 0);
  }
}

TEST(SendHandoff, ToWhomNothingWasGrantedOwesNothing) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_open(1, 1, 7, kStart);
  const auto actions = send.on_cancel(Error{499, "client_gone", "gone"}, kStart);
  EXPECT_NE(sent<protocol::AbortFrame>(actions), nullptr);
  EXPECT_TRUE(send.idle()) << "nobody is fenced for it";
}

TEST(PeerRegistry, ANewerStartFencesTheOlderOnesAndAnOlderOneIsRefused) {
  PeerRegistry registry;
  EXPECT_TRUE(registry.on_hello(1, "a", 10).accepted);
  EXPECT_TRUE(registry.on_hello(2, "a", 10).fence.empty()) << "a second connection of one start";
  EXPECT_TRUE(registry.on_hello(3, "b", 5).fence.empty()) << "another worker";
  EXPECT_TRUE(registry.on_hello(4, "", 1).accepted);
  EXPECT_TRUE(registry.on_hello(5, "", 2).fence.empty()) << "workers without a name";
  EXPECT_EQ(registry.on_hello(6, "a", 11).fence, (std::vector<PeerId>{1, 2}));
  EXPECT_FALSE(registry.on_hello(7, "a", 10).accepted);
  registry.on_closed(6);
  EXPECT_TRUE(registry.on_hello(8, "a", 9).accepted)
      << "a clock that was set back locks nobody out for ever";
  for (const PeerId peer : {3U, 4U, 5U, 8U}) registry.on_closed(peer);
  EXPECT_EQ(registry.size(), 0U);
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

// Both machines, a network that delays and loses connections, random aborts: readers are balanced,
// every leg finishes exactly once, and the receiver starts only what was fully copied.
TEST(Handoff, RandomScheduleKeepsItsPromises) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    TimePoint now = kStart;
    auto send = sender();
    std::optional<ReceiveHandoff> receive(std::in_place, "h", 1, kShape, HandoffTimeouts{});
    std::deque<protocol::HandoffFrame> to_receiver;
    std::deque<protocol::HandoffFrame> to_sender;
    int readers = 0;
    int send_finished = 0;
    int receive_finished = 0;
    int started = 0;
    uint64_t copied = 0;
    bool connected = true;
    bool fenced = false;
    const int blocks = 1 + static_cast<int>(random() % 3);
    const auto do_send = [&](const SendActions& actions) {
      for (const auto& action : actions) {
        if (const auto* frame = std::get_if<SendFrame>(&action)) {
          if (connected) to_receiver.push_back(frame->frame);
        } else if (const auto* acquire = std::get_if<AcquireReaders>(&action)) {
          readers += static_cast<int>(acquire->pages.size());
        } else if (const auto* release = std::get_if<ReleaseReaders>(&action)) {
          readers -= static_cast<int>(release->pages.size());
          ASSERT_TRUE(!receive || receive->finished() || fenced || !connected || started)
              << "readers dropped under a copying peer";
        } else if (std::holds_alternative<FencePeer>(action)) {
          fenced = true;
          connected = false;
        } else {
          ++send_finished;
        }
      }
    };
    std::function<void(const ReceiveActions&)> do_receive = [&](const ReceiveActions& actions) {
      for (const auto& action : actions) {
        if (const auto* frame = std::get_if<SendToPeer>(&action)) {
          if (connected) to_sender.push_back(frame->frame);
        } else if (std::holds_alternative<ReservePages>(action)) {
          do_receive(random() % 8 == 0 ? receive->on_no_room(Error{503, "busy", ""})
                                       : receive->on_reserved({0}, now));
        } else if (const auto* copy = std::get_if<CopyPages>(&action)) {
          copied += copy->source.size();
          do_receive(receive->on_copied(copy->layer, copy->first_block,
                                        static_cast<uint32_t>(copy->source.size()),
                                        CopyResult::kIntact, now));
        } else if (std::holds_alternative<StartSequence>(action)) {
          ++started;
          ASSERT_EQ(copied, static_cast<uint64_t>(3 * blocks));
          do_receive(receive->on_started());
        } else if (std::holds_alternative<ReceiveFinished>(action)) {
          ++receive_finished;
        }
      }
    };
    do_receive(receive->open(now));
    int layer = 0;
    int stage = 0;
    for (int step = 0; step < 200 && !(send.idle() && receive->finished()); ++step) {
      switch (random() % 6) {
        case 0:
          if (stage == 0)
            do_send(send.on_admitted(prompt(4 * blocks), "", "", tags(blocks), 0, now));
          if (stage >= 1 && layer < 3) do_send(send.on_progress(layer++, 4 * blocks, now));
          if (stage > 3) do_send(send.on_prefill_done({{.token = 1}}, now));
          ++stage;
          break;
        case 1:
        case 2:
          if (!to_receiver.empty()) {
            const auto frame = to_receiver.front();
            to_receiver.pop_front();
            if (const auto* offer = std::get_if<protocol::OfferFrame>(&frame))
              do_receive(receive->on_offer(*offer, now));
            if (const auto* push = std::get_if<protocol::PushFrame>(&frame))
              do_receive(receive->on_push(*push, now));
            if (const auto* commit = std::get_if<protocol::CommitFrame>(&frame))
              do_receive(receive->on_commit(*commit, now));
            if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame))
              do_receive(receive->on_abort(*abort));
          }
          break;
        case 3:
        case 4:
          if (!to_sender.empty()) {
            const auto frame = to_sender.front();
            to_sender.pop_front();
            if (std::holds_alternative<protocol::OpenFrame>(frame))
              do_send(send.on_open(1, 1, 42, now));
            if (const auto* grant = std::get_if<protocol::GrantFrame>(&frame))
              do_send(send.on_grant(1, *grant, now));
            if (const auto* busy = std::get_if<protocol::BusyFrame>(&frame))
              do_send(send.on_busy(1, *busy, now));
            if (const auto* ack = std::get_if<protocol::AckFrame>(&frame))
              do_send(send.on_ack(1, *ack, now));
            if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame))
              do_send(send.on_abort(1, *abort, now));
            if (const auto* ack = std::get_if<protocol::AbortAckFrame>(&frame))
              do_send(send.on_abort_ack(1, *ack, now));
          }
          break;
        default: {
          const unsigned event = random() % 40;
          if (event == 0) do_send(send.on_cancel(Error{499, "client_gone", ""}, now));
          if (event == 1) do_receive(receive->on_cancel(Error{499, "client_gone", ""}));
          if (event == 2 && connected) {
            connected = false;
            to_receiver.clear();
            to_sender.clear();
            do_receive(receive->on_peer_lost());
            do_send(send.on_peer_lost(1, now));
          }
          break;
        }
      }
    }
    for (int tick = 0; tick < 100; ++tick) {
      now += std::chrono::seconds(10);
      do_send(send.on_time(now));
      do_receive(receive->on_time(now));
    }
    do_send(send.on_cancel(Error{504, "deadline", ""}, now));
    now += std::chrono::seconds(10);
    do_send(send.on_time(now));
    EXPECT_EQ(readers, 0) << seed;
    EXPECT_EQ(send_finished, 1) << seed;
    EXPECT_EQ(receive_finished, 1) << seed;
    EXPECT_TRUE(send.idle()) << seed;
  }
}

}  // namespace
}  // namespace tandem::kv
