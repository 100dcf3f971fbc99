// Public incidents of KV planes, group by group (reference/kv.md section 5), replayed on purpose.
// Each is a plan that leads into it, with delays drawn from many seeds; the plane must come out of
// it clean, and with the protection against it switched off it must not.
#include <numeric>

#include <gtest/gtest.h>

#include "sim/kv_simulation.h"

namespace tandem::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kSeeds = 40;

std::vector<int32_t> tokens(int count, int first = 0) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Node 0 prefills; 1 and 2 decode.
struct Script : Plan {
  Script() {
    prefills = 1;
    decodes = 2;
  }
  PlannedRequest& ask(Duration at, std::vector<int32_t> prompt, std::vector<int> decode = {1}) {
    PlannedRequest& request = requests.emplace_back();
    request.at = at;
    request.prompt = std::move(prompt);
    request.decodes = std::move(decode);
    return request;
  }
  Fault& when(Moment moment, Fault::Kind kind, int node = kThere, Duration time = {}) {
    Fault& fault = faults.emplace_back();
    fault.kind = kind;
    fault.moment = moment;
    fault.node = node;
    fault.time = time;
    return fault;
  }
};

struct Sum {
  int completed = 0;
  int failed = 0;
  int abandoned = 0;
  uint64_t fenced = 0;
};

Sum clean(Plan plan) {
  Sum sum;
  for (plan.seed = 1; plan.seed <= kSeeds; ++plan.seed) {
    const Outcome outcome = run_plan(plan);
    if (!outcome.violation.empty()) {
      std::string text = describe(plan);
      for (const auto& line : run_plan(plan, true).trace) text += line + "\n";
      ADD_FAILURE() << outcome.violation << "\n" << text;
      return sum;
    }
    sum.completed += outcome.completed;
    sum.failed += outcome.failed;
    sum.abandoned += outcome.abandoned;
    sum.fenced += outcome.fenced;
  }
  return sum;
}

// How many of the seeds end in a violation.
int violated(Plan plan, Break broken) {
  plan.broken = broken;
  int count = 0;
  for (plan.seed = 1; plan.seed <= kSeeds; ++plan.seed)
    count += run_plan(plan).violation.empty() ? 0 : 1;
  return count;
}

constexpr int kAll = static_cast<int>(kSeeds);

// --- 5.1 a page is used again while somebody reads or writes it
// -----------------------------------

// No. 1, 3 and 7: decode frees pre-allocated pages on abort while bytes still arrive in them.
TEST(Incidents, No1TheReceiverKeepsItsPagesUntilNothingWritesIntoThem) {
  Script plan;
  plan.pages = 20;
  plan.slowest_copy = milliseconds(60);
  plan.ask({}, tokens(44));
  plan.ask(milliseconds(30), tokens(44, 500));
  plan.when(Moment::kCopyHalf, Fault::Kind::kAbort).request = 0;
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.abandoned, kAll);
  EXPECT_EQ(sum.completed, kAll);
  EXPECT_EQ(sum.fenced, 0U) << "no. 5 and 6: the acknowledgement ends the drain, not its timeout";
  EXPECT_GT(violated(plan, Break::kDrain), 0);
}

// No. 3, 4 and 6: prefill gives up while decode still reads its pages.
TEST(Incidents, No6TheSendersAbortKeepsItsPagesUntilTheReceiverHasStopped) {
  Script plan;
  plan.pages = 20;
  plan.slowest_copy = seconds(1);
  plan.ask({}, tokens(40)).deadline = milliseconds(400);
  plan.ask(milliseconds(410), tokens(44, 500), {2});
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.failed, kAll);
  EXPECT_EQ(sum.completed, kAll);
  EXPECT_EQ(sum.fenced, 0U);
  EXPECT_GT(violated(plan, Break::kReaders), 0);
}

// No. 7: one part of a transfer fails while others are under way.
TEST(Incidents, No7APartThatFailsWaitsForThePartsThatDoNot) {
  Script plan;
  plan.pages = 20;
  plan.slowest_copy = milliseconds(60);
  plan.ask({}, tokens(44), {1, 2});
  plan.ask(milliseconds(20), tokens(44, 500));
  plan.when(Moment::kGranted, Fault::Kind::kFailCopy);
  EXPECT_EQ(clean(plan).completed, 2 * kAll);
  EXPECT_GT(violated(plan, Break::kDrain), 0);
}

// No. 8: pages that a window has passed are given away while a pass attends to them.
TEST(Incidents, No8AWindowsPagesGoOnlyWhenNoPassSeesThem) {
  Script plan;
  plan.windows = {0, 5};
  plan.layer_groups = {0, 1, 0, 1};
  plan.pages = 44;
  plan.max_in_flight = 2;
  for (int i = 0; i < 6; ++i) plan.ask(milliseconds(10 * i), tokens(40, 100 * i)).max_tokens = 12;
  EXPECT_EQ(clean(plan).completed, 6 * kAll);
}

// No. 9, 14, 16 and 28: a block is found in the index while its bytes are still arriving.
TEST(Incidents, No14ABlockIsSharedOnlyOnceItsBytesAreThere) {
  Script plan;
  plan.slowest_copy = milliseconds(60);
  plan.ask({}, tokens(40));
  plan.ask(milliseconds(40), tokens(44));
  plan.ask(milliseconds(60), tokens(40));
  EXPECT_EQ(clean(plan).completed, 3 * kAll);
  EXPECT_GT(violated(plan, Break::kI3), 0);
}

// --- 5.2 a load that failed or is partial counts as a hit
// -----------------------------------------

// No. 17: a reader that was away returns the previous prompt's answer. Decode is frozen before it
// has read; its handoff is given to another, the pages go to other prompts, and it wakes up.
TEST(Incidents, No17AFrozenReaderDoesNotBelieveWhatItReadsTooLate) {
  Script plan;
  plan.pages = 20;
  plan.slowest_copy = {};
  plan.ask({}, tokens(44), {1, 2});
  plan.ask(seconds(5), tokens(48, 500), {2});
  plan.ask(seconds(6), tokens(48, 700), {2});
  plan.when(Moment::kGranted, Fault::Kind::kFreeze, kThere, seconds(9));
  EXPECT_EQ(clean(plan).completed, 3 * kAll);
  EXPECT_GT(violated(plan, Break::kI2), 0);
}

// No. 18, 21 and 25: a success flag without the bytes.
TEST(Incidents, No25OnlyWhatWasCopiedWholeIsStarted) {
  Script plan;
  plan.ask({}, tokens(40), {1, 2});
  plan.when(Moment::kGranted, Fault::Kind::kFailCopy);
  EXPECT_EQ(clean(plan).completed, kAll);
  EXPECT_EQ(violated(plan, Break::kCoverage), kAll);
}

// No. 26: what an aborted request has computed or received so far stands in the tree.
TEST(Incidents, No26AnAbortedTransferLeavesNothingToHit) {
  Script plan;
  plan.slowest_copy = milliseconds(60);
  plan.ask({}, tokens(40));
  plan.ask(milliseconds(300), tokens(44));
  plan.when(Moment::kCopyHalf, Fault::Kind::kAbort).request = 0;
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.abandoned, kAll);
  EXPECT_EQ(sum.completed, kAll);
  EXPECT_GT(violated(plan, Break::kI3), 0);
}

// No. 27: decode promised a prefix, prefill skipped it, and then it was gone.
TEST(Incidents, No27AGrantedPrefixStays) {
  Script plan;
  plan.pages = 26;
  plan.slowest_copy = milliseconds(60);
  plan.ask({}, tokens(40));
  plan.ask(seconds(4), tokens(48));  // shares ten blocks
  plan.ask(milliseconds(4010), tokens(40, 500));
  plan.ask(milliseconds(4020), tokens(40, 700));
  EXPECT_EQ(clean(plan).completed, 4 * kAll);
}

// --- 5.3 leases and publication
// -------------------------------------------------------------------

// No. 32: what is said of an earlier write ends a later one. The first attempt's copies are still
// draining when the second attempt opens over the same connection.
TEST(Incidents, No32AStaleAcknowledgementFreesNothing) {
  Script plan;
  plan.slowest_copy = milliseconds(400);
  plan.ask({}, tokens(40), {1, 1}).max_tokens = 2;
  plan.when(Moment::kGranted, Fault::Kind::kFailCopy);
  EXPECT_EQ(clean(plan).completed, kAll);
  EXPECT_GT(violated(plan, Break::kNonce), 0);
}

// No. 31 and 33: a read that takes longer than the lease fails although all is well.
TEST(Incidents, No33ATransferThatTakesMinutesIsNotCutOff) {
  Script plan;
  plan.slowest_copy = seconds(10);
  plan.ask({}, tokens(44));
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.completed, kAll);
  EXPECT_EQ(sum.fenced, 0U);
}

// No. 35: decode comes when prefill has let go.
TEST(Incidents, No35ALateDecodeIsRefusedAndNothingStays) {
  Script plan;
  plan.ask({}, tokens(40));
  Fault& freeze = plan.faults.emplace_back();
  freeze.kind = Fault::Kind::kFreeze;
  freeze.node = 1;
  freeze.time = seconds(50);
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.completed + sum.failed, kAll);
}

// --- 5.4 death, hang, reconnect
// -------------------------------------------------------------------

// No. 37 and 39: decode waits for ever for a transfer whose sender died without a word.
TEST(Incidents, No37ASilentDeathOfPrefillEndsTheWait) {
  for (const Moment moment : {Moment::kOffered, Moment::kGranted, Moment::kPushed,
                              Moment::kCopyHalf, Moment::kCommitted}) {
    Script plan;
    plan.shared_memory = false;
    plan.ask({}, tokens(40));
    plan.when(moment, Fault::Kind::kCrash, 0, milliseconds(200)).silent = true;
    const Sum sum = clean(plan);
    EXPECT_EQ(sum.completed + sum.failed, kAll) << moment_name(moment);
  }
}

// No. 38: prefill neither reports nor posts.
TEST(Incidents, No38AFrozenPrefillGivesDecodesBlocksBack) {
  for (const Moment moment : {Moment::kOpened, Moment::kOffered, Moment::kPushed}) {
    Script plan;
    plan.ask({}, tokens(40));
    plan.when(moment, Fault::Kind::kFreeze, 0, seconds(60));
    const Sum sum = clean(plan);
    EXPECT_EQ(sum.completed + sum.failed, kAll) << moment_name(moment);
  }
}

// A reader that does not answer any more is fenced; time alone frees nothing.
TEST(Incidents, No39AReaderThatDoesNotAnswerIsFencedBeforeItsPagesAreUsed) {
  Script plan;
  plan.pages = 20;
  plan.slowest_copy = seconds(3);
  plan.ask({}, tokens(40)).deadline = seconds(2);
  plan.ask(seconds(3), tokens(44, 500), {2});
  plan.when(Moment::kCopyHalf, Fault::Kind::kSlow, 0, seconds(60)).other = 1;
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.completed, kAll);
  EXPECT_GT(violated(plan, Break::kTime), 0);
}

// No. 40: one early disconnect bars a peer for good.
TEST(Incidents, No40APeerThatWasCutOffIsDialedAgain) {
  for (const auto kind : {Fault::Kind::kReset, Fault::Kind::kCrash}) {
    Script plan;
    plan.ask({}, tokens(40), {1, 2});
    plan.ask(seconds(10), tokens(40, 500));
    plan.when(Moment::kOpened, kind, 0, milliseconds(100)).other = 1;
    EXPECT_GE(clean(plan).completed, kAll) << "the second at least";
  }
}

// The decode worker is restarted between OFFER and GRANT; what its earlier start said is over.
TEST(Incidents, No40APeerThatRestartsBetweenOfferAndGrantIsAnotherPeer) {
  for (const bool silent : {false, true}) {
    Script plan;
    plan.ask({}, tokens(40), {1, 1});
    plan.ask(milliseconds(900), tokens(40, 500));
    plan.when(Moment::kReserving, Fault::Kind::kCrash, kThere, milliseconds(100)).silent = silent;
    const Sum sum = clean(plan);
    EXPECT_GE(sum.completed, kAll);
    if (silent) EXPECT_GT(sum.fenced, 0U) << "its old connection, by its epoch";
  }
}

// No. 41 and 42: one worker's death takes others' requests with it.
TEST(Incidents, No41OneDecodesDeathHurtsItsOwnRequestsOnly) {
  Script plan;
  plan.ask({}, tokens(40), {1});
  plan.ask({}, tokens(40, 500), {2});
  plan.when(Moment::kStarted, Fault::Kind::kCrash, 1, seconds(5));
  const Sum sum = clean(plan);
  EXPECT_GE(sum.completed, kAll);
}

// --- 5.6 leaks
// ------------------------------------------------------------------------------------

// No. 57 and 59: pins are lost when requests are aborted at an odd moment.
TEST(Incidents, No59AbortsAtEveryMomentLeaveNothingBehind) {
  for (int moment = 1; moment <= static_cast<int>(Moment::kFirstToken); ++moment) {
    Script plan;
    plan.slowest_copy = milliseconds(20);
    plan.ask({}, tokens(40));
    plan.ask(milliseconds(1), tokens(44));
    plan.when(static_cast<Moment>(moment), Fault::Kind::kAbort).request = 0;
    const Sum sum = clean(plan);
    EXPECT_GE(sum.completed, kAll) << moment_name(static_cast<Moment>(moment));
  }
}

// No. 58: what is pinned fills the pool, and nobody can go on.
TEST(Incidents, No58AFullPoolComesFreeAgain) {
  Script plan;
  plan.pages = 18;
  for (int i = 0; i < 8; ++i) plan.ask(milliseconds(i), tokens(44, 100 * i)).max_tokens = 8;
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.completed + sum.failed, 8 * kAll);
  EXPECT_GE(sum.completed, 4 * kAll);
}

// A reservation whose request is gone leaves the queue, so that those behind it have room.
TEST(Incidents, No59ACancelledReservationDoesNotHoldTheQueue) {
  Script plan;
  plan.pages = 20;
  plan.ask({}, tokens(50)).max_tokens = 20;
  plan.ask(milliseconds(100), tokens(52, 300));
  plan.ask(milliseconds(110), tokens(8, 700));
  plan.when(Moment::kReserving, Fault::Kind::kAbort).request = 1;
  plan.faults.back().nth = 2;
  const Sum sum = clean(plan);
  EXPECT_EQ(sum.abandoned, kAll);
  EXPECT_EQ(sum.completed, 2 * kAll);
}

// --- 5.7 identity
// ---------------------------------------------------------------------------------

// No. 65: an adapter's name and a tenant's salt in one field.
TEST(Incidents, No65AnAdapterIsPartOfABlocksIdentity) {
  Script plan;
  plan.ask({}, tokens(40));
  plan.ask(seconds(1), tokens(44)).adapter = "one";
  plan.ask(seconds(2), tokens(44)).salt = "one";
  plan.ask(seconds(3), tokens(44)).adapter = "two";
  EXPECT_EQ(clean(plan).completed, 4 * kAll);
  EXPECT_EQ(violated(plan, Break::kI5), kAll);
}

// No. 62: a session that returns gets another's blocks, since its own were replaced meanwhile.
TEST(Incidents, No62AReturningSessionGetsItsOwnBlocksOrNone) {
  Script plan;
  plan.pages = 22;
  for (int turn = 0; turn < 3; ++turn) {
    for (int session = 0; session < 3; ++session)
      plan.ask(seconds(4 * turn + session), tokens(20 + 10 * turn, 100 * session), {1, 2});
  }
  EXPECT_EQ(clean(plan).completed, 9 * kAll);
}

}  // namespace
}  // namespace tandem::sim
