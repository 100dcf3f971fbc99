#include "kv/handoff/send_handoff.h"

#include <gtest/gtest.h>

#include "kv/handoff/handoff_test_support.h"

namespace tandem::kv {
namespace {

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

TEST(SendHandoff, AttemptsThatAreStillBeingEndedAreBounded) {
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  int64_t readers = 0;
  bool refused = false;
  for (uint32_t attempt = 1; attempt < 100; ++attempt) {
    const auto opened = send.on_open(1, attempt, 7, kStart);
    refused = sent<protocol::OfferFrame>(opened) == nullptr;
    readers += count<AcquireReaders>(send.on_grant(1, {{"h", attempt, 7}, {0}}, kStart));
  }
  EXPECT_TRUE(refused);
  EXPECT_LE(readers, 32);
  EXPECT_EQ(count<ReleaseReaders>(send.on_peer_lost(1, kStart)), readers);
  EXPECT_NE(sent<protocol::OfferFrame>(send.on_open(2, 100, 8, kStart)), nullptr);
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

}  // namespace
}  // namespace tandem::kv
