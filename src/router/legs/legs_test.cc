#include "router/legs/legs.h"

#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using namespace std::chrono_literals;
using Kind = Decision::Kind;

std::string show(const Decisions& decisions) {
  std::ostringstream out;
  for (const Decision& decision : decisions) {
    const char* const leg = decision.leg == Leg::kPrefill ? "prefill" : "answer";
    if (out.tellp() > 0) out << ", ";
    switch (decision.kind) {
      case Kind::kPlaceAll:
        out << "place";
        break;
      case Kind::kPlaceAnswer:
        out << "place answer";
        break;
      case Kind::kDispatch:
        out << leg << " to " << decision.worker << " #" << decision.serial << "/"
            << decision.attempt;
        break;
      case Kind::kCancel:
        out << "cancel " << leg << " #" << decision.serial;
        break;
      case Kind::kDetach:
        out << "detach " << leg << " #" << decision.serial;
        break;
      case Kind::kRelease:
        out << "release";
        break;
      case Kind::kCharge:
        out << "charge " << decision.worker;
        break;
      case Kind::kRelay:
        out << "relay " << leg;
        break;
      case Kind::kAnswer:
        out << "error " << decision.error.status << " " << decision.error.code;
        break;
      case Kind::kBreak:
        out << "break " << decision.error.code;
        break;
      case Kind::kFinish:
        out << "finish";
        break;
      case Kind::kAbandon:
        out << "abandon";
        break;
    }
  }
  return out.str();
}

const Error kWhy{500, "x", "why"};

class LegsTest : public testing::Test {
 protected:
  TimePoint at(std::chrono::milliseconds time) const { return TimePoint() + time; }
  std::string fail(uint32_t serial, LegFailure failure, std::chrono::milliseconds time = 0ms) {
    return show(legs.failed(serial, failure, kWhy, at(time)));
  }
  // A pair: prefill on 0 is #1, answer on 10 is #2.
  void pair() {
    EXPECT_EQ(show(legs.start()), "place");
    EXPECT_EQ(show(legs.placed({0, 10})), "prefill to 0 #1/1, answer to 10 #2/1");
  }
  void single() {
    legs.start();
    EXPECT_EQ(show(legs.placed({kNoWorker, 10})), "answer to 10 #1/1");
  }
  Legs legs;
};

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

// Whatever happens in whatever order: one last decision, no leg left running, no dispatch after the
// first byte, nothing charged that did not fail.
TEST(LegsRandom, InvariantsHoldForAnyOrderOfEvents) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    RetryBudget budget({.share = 0, .floor = 0.3});
    Legs legs({.redials = random() % 2 == 0,
               .keeps = random() % 2 == 0,
               .cut_in_flight = random() % 2 == 0,
               .releases = random() % 2 == 0,
               .budget = random() % 2 == 0 ? &budget : nullptr});
    const Order order = random() % 2 == 0 ? Order::kTogether : Order::kPrefillFirst;
    std::map<uint32_t, WorkerId> live;  // dispatched, neither ended by an event nor cancelled
    std::set<WorkerId> failed;
    std::set<WorkerId> dispatched;
    int last = 0;
    int dispatches = 0;
    bool began = false;
    TimePoint now;
    const auto any = [&](uint32_t base) { return base + static_cast<WorkerId>(random() % 4); };
    const auto handle = [&](const Decisions& first) {
      std::vector<Decisions> queue{first};
      while (!queue.empty()) {
        const Decisions decisions = queue.back();
        queue.pop_back();
        for (const Decision& decision : decisions) {
          ASSERT_EQ(last, 0) << "nothing follows the last decision";
          switch (decision.kind) {
            case Kind::kPlaceAll:
              ASSERT_TRUE(live.empty());
              if (random() % 8 == 0) {
                queue.push_back(legs.not_placed());
              } else if (random() % 3 == 0) {
                queue.push_back(legs.placed({kNoWorker, any(10)}, order));
              } else {
                queue.push_back(legs.placed({any(0), any(10)}, order));
              }
              break;
            case Kind::kPlaceAnswer:
              queue.push_back(random() % 4 == 0 ? legs.not_placed() : legs.placed_answer(any(10)));
              break;
            case Kind::kDispatch:
              ASSERT_FALSE(began);
              ASSERT_LE(live.size(), 1U);
              ++dispatches;
              live[decision.serial] = decision.worker;
              dispatched.insert(decision.worker);
              break;
            case Kind::kRelease:
              break;
            case Kind::kDetach:
              ASSERT_FALSE(began);
              ASSERT_EQ(live.erase(decision.serial), 1U);
              break;
            case Kind::kCancel:
              ASSERT_EQ(live.erase(decision.serial), 1U);
              break;
            case Kind::kCharge:
              ASSERT_TRUE(failed.contains(decision.worker));
              break;
            case Kind::kBreak:
              ASSERT_TRUE(began);
              ++last;
              break;
            case Kind::kAnswer:
            case Kind::kRelay:
              ASSERT_FALSE(began);
              ++last;
              break;
            default:
              ++last;
          }
        }
      }
    };
    handle(legs.start());
    for (int step = 0; step < 60 && !legs.over(); ++step) {
      now += std::chrono::milliseconds(random() % 100);
      const uint32_t serial = live.empty() || random() % 10 == 0
                                  ? random() % 9
                                  : std::next(live.begin(), random() % live.size())->first;
      const bool known = live.contains(serial);
      switch (random() % 8) {
        case 0:
          if (known && live[serial] < 10) {
            live.erase(serial);
            handle(random() % 8 == 0 && !began ? legs.prefill_changed(serial, now)
                                               : legs.prefill_done(serial, random() % 8 == 0));
          }
          break;
        case 1:
          if (known && live[serial] >= 10) {
            began = true;
            handle(legs.answer_byte(serial));
          }
          break;
        case 2:
          if (known && live[serial] >= 10 && began) {
            live.erase(serial);
            handle(legs.answer_done(serial));
          }
          break;
        case 3:
          if (random() % 10 == 0) handle(legs.client_gone());
          break;
        case 4:
          handle(legs.tick(now));
          break;
        case 5: {
          const WorkerId worker = known ? live[serial] : random() % 14;
          failed.insert(worker);
          handle(legs.worker_down(worker, now));
          break;
        }
        default:
          if (known) {
            failed.insert(live[serial]);
            live.erase(serial);
            failed.insert(dispatched.begin(), dispatched.end());  // it may name its peer
          }
          handle(legs.failed(serial, static_cast<LegFailure>(random() % 6), kWhy, now));
      }
      if (HasFatalFailure()) FAIL() << "round " << round;
    }
    handle(legs.deadline_passed());
    ASSERT_EQ(last, 1);
    ASSERT_TRUE(live.empty()) << "a leg was left running";
    ASSERT_LE(dispatches, 8);
    ASSERT_EQ(legs.wakes_at(), TimePoint::max());
  }
}

}  // namespace
}  // namespace tandem::router
