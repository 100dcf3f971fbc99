// Both orders, and what engines keep and may not have cut.
#include "router/legs/legs_fixture.h"

namespace tandem::router {
namespace {

// Engines that Tandem only fronts: how each differs is a row of options.
class ForeignLegsTest : public LegsTest {
 protected:
  // Rooms: both legs at once, nothing is kept, everything may be cut.
  void rooms() {
    legs = Legs({.verdict_time = 30ms, .redials = false});
    pair();
  }
  // Pull: prefill first; its blocks wait for decode, and must not be cut loose on their way.
  void pull(RetryBudget* budget = nullptr) {
    legs = Legs({.redials = false,
                 .keeps = true,
                 .cut_in_flight = false,
                 .releases = true,
                 .budget = budget});
    legs.start();
    EXPECT_EQ(show(legs.placed({0, 10}, Order::kPrefillFirst)), "prefill to 0 #1/1");
  }
};

TEST_F(ForeignLegsTest, PrefillFirstSendsTheAnswerLegWhenPrefillIsDone) {
  pull();
  EXPECT_EQ(show(legs.prefill_done(1)), "answer to 10 #2/1");
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.answer_done(2)), "finish");
}

TEST_F(ForeignLegsTest, PrefillFirstWithoutAPairIsOneLeg) {
  legs = Legs({.redials = false});
  legs.start();
  EXPECT_EQ(show(legs.placed({kNoWorker, 10}, Order::kPrefillFirst)), "answer to 10 #1/1");
}

TEST_F(ForeignLegsTest, ADecodeWorkerThatWentDownMeanwhileIsReplacedWhenPrefillIsDone) {
  pull();
  EXPECT_EQ(show(legs.worker_down(10, at(0ms))), "");
  EXPECT_EQ(show(legs.prefill_done(1)), "place answer");
  EXPECT_EQ(show(legs.placed_answer(11)), "answer to 11 #2/1");
}

TEST_F(ForeignLegsTest, PrefillsRefusalIsRelayedAndNoDecodeIsSent) {
  pull();
  EXPECT_EQ(fail(1, LegFailure::kRefused), "relay prefill");
}

TEST_F(ForeignLegsTest, PrefillsFailureBeforeDecodeWasSentIsRepeatedAtOnce) {
  pull();
  EXPECT_EQ(fail(1, LegFailure::kFailed), "charge 0, place");
  EXPECT_EQ(show(legs.placed({1, 10}, Order::kPrefillFirst)), "prefill to 1 #2/1");
}

TEST_F(ForeignLegsTest, AnUnreachedDecodeLeavesTheKvToAnother) {
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kUnreached), "charge 10, place answer");
  EXPECT_EQ(show(legs.placed_answer(11)), "answer to 11 #3/2");
}

TEST_F(ForeignLegsTest, ADecodeThatMayHaveTakenTheKvMeansAWholeRepeatWithNewIds) {
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 10, place");
  EXPECT_EQ(show(legs.placed({0, 11}, Order::kPrefillFirst)), "prefill to 0 #3/1");
}

TEST_F(ForeignLegsTest, NothingIsKeptInRoomsAfterDecodeDied) {
  rooms();
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 10, cancel prefill #1, place");
}

TEST_F(ForeignLegsTest, AnUnreachedDecodeLeavesTheRoomToAnother) {
  rooms();
  EXPECT_EQ(fail(2, LegFailure::kUnreached), "charge 10, place answer");
  EXPECT_EQ(show(legs.placed_answer(11)), "answer to 11 #3/2");
}

TEST_F(ForeignLegsTest, PrefillsErrorCancelsDecodeWithin50msAndChargesOnlyPrefill) {
  rooms();
  EXPECT_EQ(fail(1, LegFailure::kFailed, 0ms), "");
  EXPECT_LE(legs.wakes_at(), at(40ms)) << "a timer may be ten milliseconds late";
  EXPECT_EQ(show(legs.tick(at(30ms))), "charge 0, cancel answer #2, place");
  EXPECT_EQ(fail(2, LegFailure::kFailed, 31ms), "") << "the echo in decode charges nobody";
}

TEST_F(ForeignLegsTest, ADecodeThatFailsBecausePrefillDiedIsNotCharged) {
  rooms();
  EXPECT_EQ(fail(2, LegFailure::kFailed, 0ms), "");
  EXPECT_EQ(fail(1, LegFailure::kUnreached, 5ms), "charge 0, place");
}

TEST_F(ForeignLegsTest, KvInFlightIsNotCutWhenTheClientLeaves) {
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(show(legs.client_gone()), "detach answer #2, abandon");
}

TEST_F(ForeignLegsTest, BeforeAndAfterTheTransferBothAreCut) {
  pull();
  EXPECT_EQ(show(legs.client_gone()), "cancel prefill #1, abandon");
  pull();
  legs.prefill_done(1);
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.client_gone()), "cancel answer #2, abandon");
  rooms();
  EXPECT_EQ(show(legs.client_gone()), "cancel prefill #1, cancel answer #2, abandon");
}

TEST_F(ForeignLegsTest, TheDeadlineDoesNotCutKvInFlightEither) {
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(show(legs.deadline_passed()), "detach answer #2, error 504 request_timeout");
}

TEST_F(ForeignLegsTest, KvThatNobodyTookIsReleased) {
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kBusy), "release, place") << "the repeat gets its own";
  pull();
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kUnreached), "charge 10, place answer");
  EXPECT_EQ(show(legs.client_gone()), "release, abandon");
}

TEST_F(ForeignLegsTest, ReleasingIsAChoice) {
  legs = Legs({.redials = false, .keeps = true, .cut_in_flight = false});
  legs.start();
  legs.placed({0, 10}, Order::kPrefillFirst);
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kBusy), "place");
}

TEST_F(ForeignLegsTest, APrefillThatAnsweredEverythingIsTheAnswer) {
  pull();
  EXPECT_EQ(show(legs.prefill_done(1, true)), "relay prefill");
  rooms();
  EXPECT_EQ(show(legs.prefill_done(1, true)), "cancel answer #2, relay prefill");
}

TEST_F(ForeignLegsTest, APrefillThatWasRestartedMeansBothBeginAnewAndNobodyIsCharged) {
  rooms();
  EXPECT_EQ(show(legs.prefill_changed(1, at(0ms))), "cancel answer #2, place");
  EXPECT_TRUE(legs.excluded().empty());
  EXPECT_EQ(show(legs.not_placed()), "error 503 prefill_failed");
}

TEST_F(ForeignLegsTest, WithoutBudgetThereIsNoRepetition) {
  RetryBudget budget({.share = 0, .floor = 0.1});
  pull(&budget);
  EXPECT_EQ(fail(1, LegFailure::kDied), "charge 0, place");
  legs.placed({1, 10}, Order::kPrefillFirst);
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 1, error 503 prefill_failed");
}

}  // namespace
}  // namespace tandem::router
