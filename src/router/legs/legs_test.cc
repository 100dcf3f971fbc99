#include "router/legs/legs.h"

#include "router/legs/legs_fixture.h"

namespace tandem::router {
namespace {

TEST_F(LegsTest, APairThatWorks) {
  pair();
  EXPECT_EQ(show(legs.prefill_done(1)), "");
  EXPECT_FALSE(legs.began());
  legs.answer_byte(2);
  EXPECT_TRUE(legs.began());
  EXPECT_EQ(show(legs.answer_done(2)), "finish");
  EXPECT_TRUE(legs.over());
}

TEST_F(LegsTest, TheFirstByteMayComeBeforePrefillsAnswer) {
  pair();
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.answer_done(2)), "cancel prefill #1, finish");
}

TEST_F(LegsTest, PrefillsRefusalGoesToTheClientAndAnswerDiesAtOnce) {
  pair();
  EXPECT_EQ(fail(1, LegFailure::kRefused), "cancel answer #2, relay prefill");
  EXPECT_EQ(fail(2, LegFailure::kDied), "");
}

TEST_F(LegsTest, TheAnswerLegsRefusalGoesToTheClientAndPrefillDiesAtOnce) {
  pair();
  EXPECT_EQ(fail(2, LegFailure::kRefused), "cancel prefill #1, relay answer");
}

TEST_F(LegsTest, PrefillsDeathBeforeTheFirstBytePlacesTheWholeRequestAgain) {
  pair();
  EXPECT_EQ(fail(1, LegFailure::kDied), "charge 0, cancel answer #2, place");
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{0});
  EXPECT_EQ(show(legs.placed({1, 10})), "prefill to 1 #3/1, answer to 10 #4/1");
  EXPECT_EQ(fail(2, LegFailure::kDied), "") << "late news of a cancelled leg";
  legs.answer_byte(4);
  EXPECT_EQ(show(legs.answer_done(4)), "cancel prefill #3, finish");
}

TEST_F(LegsTest, PrefillsDeathWithNoOtherIsAnErrorThatNamesIt) {
  pair();
  fail(1, LegFailure::kDied);
  EXPECT_EQ(show(legs.not_placed()), "error 503 prefill_failed");
}

TEST_F(LegsTest, TheAnswerLegsDeathLetsAnotherDialTheSameHandoff) {
  pair();
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 10, place answer");
  EXPECT_EQ(show(legs.placed_answer(11)), "answer to 11 #3/2");
  EXPECT_EQ(fail(3, LegFailure::kDied), "charge 11, place answer");
  EXPECT_EQ(show(legs.placed_answer(12)), "answer to 12 #4/3");
  EXPECT_EQ(show(legs.prefill_done(1)), "");
  legs.answer_byte(4);
  EXPECT_EQ(show(legs.answer_done(4)), "finish");
}

TEST_F(LegsTest, AfterPrefillIsDoneADeadAnswerLegMeansAWholeRepeat) {
  pair();
  legs.prefill_done(1);
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 10, place");
  EXPECT_EQ(show(legs.placed({0, 11})), "prefill to 0 #3/1, answer to 11 #4/1");
}

TEST_F(LegsTest, NoOtherAnsweringWorkerEndsBothLegs) {
  pair();
  fail(2, LegFailure::kDied);
  EXPECT_EQ(show(legs.not_placed()), "cancel prefill #1, error 503 decode_failed");
}

TEST_F(LegsTest, BusyTriesTheNextAndChargesNobody) {
  pair();
  EXPECT_EQ(fail(2, LegFailure::kBusy), "place answer");
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{10});
  EXPECT_EQ(show(legs.placed_answer(11)), "answer to 11 #3/2");
  EXPECT_EQ(fail(1, LegFailure::kBusy), "cancel answer #3, place");
  EXPECT_EQ(show(legs.not_placed()), "error 503 overloaded");
}

TEST_F(LegsTest, WrongAnswersAreABadGatewayNotAPlaceToComeBackTo) {
  single();
  fail(1, LegFailure::kFailed);
  EXPECT_EQ(show(legs.not_placed()), "error 502 decode_failed");
}

TEST_F(LegsTest, ASingleLegIsPlacedAgainElsewhere) {
  single();
  EXPECT_EQ(fail(1, LegFailure::kFailed), "charge 10, place");
  EXPECT_EQ(show(legs.placed({kNoWorker, 11})), "answer to 11 #2/1");
}

TEST_F(LegsTest, RepetitionsAreBounded) {
  single();
  std::string last;
  int dispatches = 1;
  for (WorkerId worker = 11; !legs.over(); ++worker) {
    last = fail(static_cast<uint32_t>(dispatches), LegFailure::kDied);
    if (!legs.over()) {
      legs.placed({kNoWorker, worker});
      ++dispatches;
    }
  }
  EXPECT_EQ(dispatches, LegsOptions().max_dispatches);
  EXPECT_EQ(last, "charge 13, error 503 decode_failed");
}

TEST_F(LegsTest, AnErrorAnswerOfTheAnswerLegMayBeTheEchoOfPrefillsDeath) {
  pair();
  EXPECT_EQ(fail(2, LegFailure::kFailed, 0ms), "") << "wait for the verdict";
  EXPECT_EQ(legs.wakes_at(), at(150ms));
  EXPECT_EQ(fail(1, LegFailure::kDied, 10ms), "charge 0, place") << "only prefill is guilty";
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{0});
  EXPECT_EQ(legs.wakes_at(), TimePoint::max());
}

TEST_F(LegsTest, WithoutSuchNewsTheErrorIsItsOwn) {
  pair();
  fail(2, LegFailure::kFailed, 0ms);
  EXPECT_EQ(show(legs.tick(at(149ms))), "");
  EXPECT_EQ(show(legs.tick(at(150ms))), "charge 10, place answer");
}

TEST_F(LegsTest, AnErrorAnswerOfPrefillMayBeTheEchoOfTheAnswerLegsDeath) {
  pair();
  EXPECT_EQ(fail(1, LegFailure::kFailed, 0ms), "");
  EXPECT_EQ(fail(2, LegFailure::kDied, 10ms), "charge 10, place");
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{10});
}

TEST_F(LegsTest, AnAnswerLegThatLostPrefillDialsOnceMoreAndThenPrefillIsGuilty) {
  pair();
  EXPECT_EQ(fail(2, LegFailure::kLostPeer), "place answer");
  EXPECT_TRUE(legs.excluded().empty()) << "the connection may have been all that broke";
  EXPECT_EQ(show(legs.placed_answer(10)), "answer to 10 #3/2");
  EXPECT_EQ(fail(3, LegFailure::kLostPeer), "cancel prefill #1, charge 0, place");
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{0});
  EXPECT_EQ(show(legs.not_placed()), "error 503 prefill_failed") << "it may be back in a moment";
}

TEST_F(LegsTest, NobodyToDialTheLostPrefillAgainIs503) {
  pair();
  fail(2, LegFailure::kLostPeer);
  EXPECT_EQ(show(legs.not_placed()), "cancel prefill #1, error 503 prefill_failed");
}

TEST_F(LegsTest, APrefillLegThatNobodyDialedChargesTheAnsweringWorker) {
  pair();
  EXPECT_EQ(fail(1, LegFailure::kLostPeer), "cancel answer #2, charge 10, place");
  EXPECT_EQ(legs.excluded(), std::vector<WorkerId>{10});
  EXPECT_EQ(show(legs.not_placed()), "error 503 decode_failed");
}

TEST_F(LegsTest, ASingleLegHasNoPeerToLose) {
  single();
  EXPECT_EQ(fail(1, LegFailure::kLostPeer), "charge 10, place");
  EXPECT_EQ(show(legs.not_placed()), "error 502 decode_failed");
}

TEST_F(LegsTest, NothingIsRepeatedAfterTheFirstByte) {
  pair();
  legs.prefill_done(1);
  legs.answer_byte(2);
  EXPECT_EQ(fail(2, LegFailure::kDied), "charge 10, break decode_failed");
}

TEST_F(LegsTest, AStreamOutlivesPrefillsDeathIfItStillGivesBytes) {
  pair();
  legs.answer_byte(2);
  EXPECT_EQ(fail(1, LegFailure::kDied, 0ms), "charge 0");
  EXPECT_EQ(legs.wakes_at(), at(900ms));
  legs.answer_byte(2);
  EXPECT_EQ(legs.wakes_at(), TimePoint::max());
  EXPECT_EQ(show(legs.tick(at(2000ms))), "");
  EXPECT_EQ(show(legs.answer_done(2)), "finish");
}

TEST_F(LegsTest, AStreamThatPrefillsDeathLeavesDryBreaksWithinASecond) {
  pair();
  legs.answer_byte(2);
  fail(1, LegFailure::kDied, 0ms);
  EXPECT_EQ(show(legs.tick(at(899ms))), "");
  EXPECT_EQ(show(legs.tick(at(900ms))), "cancel answer #2, break prefill_failed");
}

TEST_F(LegsTest, ASuspectPrefillDoesNotUndoAStreamThatHasBegun) {
  pair();
  EXPECT_EQ(fail(1, LegFailure::kFailed, 0ms), "");
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.tick(at(150ms))), "charge 0");
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.answer_done(2)), "finish");
}

TEST_F(LegsTest, AWorkerThatHealthCallsDownLosesItsLegs) {
  pair();
  EXPECT_EQ(show(legs.worker_down(7, at(0ms))), "");
  EXPECT_EQ(show(legs.worker_down(10, at(0ms))), "cancel answer #2, charge 10, place answer");
  legs.placed_answer(11);
  EXPECT_EQ(show(legs.worker_down(0, at(0ms))),
            "cancel prefill #1, charge 0, cancel answer #3, place");
}

TEST_F(LegsTest, AFinishedPrefillLegDoesNotMindItsWorkersEnd) {
  pair();
  legs.prefill_done(1);
  EXPECT_EQ(show(legs.worker_down(0, at(0ms))), "");
}

TEST_F(LegsTest, ADownWorkerBreaksItsStreams) {
  pair();
  legs.prefill_done(1);
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.worker_down(10, at(0ms))),
            "cancel answer #2, charge 10, break decode_failed");
}

TEST_F(LegsTest, TheClientsLeavingAndTheDeadlineCancelBoth) {
  pair();
  EXPECT_EQ(show(legs.client_gone()), "cancel prefill #1, cancel answer #2, abandon");
  EXPECT_EQ(show(legs.client_gone()), "");
  EXPECT_EQ(show(legs.deadline_passed()), "");
  legs = Legs();
  pair();
  EXPECT_EQ(show(legs.deadline_passed()),
            "cancel prefill #1, cancel answer #2, error 504 request_timeout");
  legs = Legs();
  pair();
  legs.answer_byte(2);
  EXPECT_EQ(show(legs.deadline_passed()),
            "cancel prefill #1, cancel answer #2, break request_timeout");
}

TEST_F(LegsTest, NobodyToTakeTheRequestIs503) {
  legs.start();
  EXPECT_EQ(show(legs.not_placed()), "error 503 no_workers");
}

}  // namespace
}  // namespace tandem::router
