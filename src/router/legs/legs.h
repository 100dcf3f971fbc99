// Legs: the life of one request's legs, as a pure state machine. Events in, decisions out, time as
// an argument. It is the one owner of abort: nothing else decides that a leg dies.
//
// Words. The *answer leg* is the one whose bytes go to the client (decode, or a worker that does
// everything); the *prefill leg* exists only for a pair. A serial names one dispatch of one leg: an
// event that carries an old serial is ignored, so a cancelled leg's late news does no harm.
//
// The rules:
//  * Nothing is repeated after the first byte reached the client.
//  * Prefill refuses: its answer goes to the client word for word; the answer leg dies at
//  once. The same the other way round.
//  * Prefill dies or fails before the first byte: both legs die, the whole request is placed again
//  without it.
//  * The answer leg dies or fails before the first byte: while prefill still works, another worker
//  dials the same handoff with
//    the next attempt number (prefill keeps the blocks); otherwise the whole request is placed
//    again.
//  * Busy (503) is a failure that is charged to nobody.
//  * A leg that says it lost the other leg's worker tells of the other's death, not of its own. The
//  answer leg may have lost only the connection (prefill fences a peer that was frozen): once,
//  while prefill still works, it is placed again, on anyone, and dials anew.
//  * When nobody is left to try: 503 after deaths and busy workers, 502 after wrong answers.
//  * A leg that *answered* an error of its own (5xx) may only have felt the other's death: its fate
//  is decided
//    kVerdictTime later unless the other leg's death arrives first, and then only the other is
//    charged.
//  * After the first byte, prefill's death ends the stream only if the answer leg gives nothing for
//  kProgressTime: once the
//    handoff is committed the answer does not need prefill any more.
//  * After the first byte, the answer leg's death ends the stream with an error frame.
//  * The client leaves, or the deadline passes: both die at once. Where KV in flight must not be
//  cut (prefill is done, the answer has not begun), the answer leg is let go instead: it attaches,
//  then it is closed.
//
// How connectors differ is in LegsOptions, as data. Together: both legs are sent at once. Prefill
// first: the answer leg is sent when prefill is done. A replacement answer leg may use the same
// handoff if the engine allows attempts (`redials`), or if the first one never reached its worker;
// else the whole request is placed again, with new ids. When prefill is done, nobody took its KV
// and the request ends, kRelease has another decode worker take it (`releases`), or its lease runs
// out. Repetitions are bounded by `max_dispatches` and by the budget that all requests share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "router/legs/retry_budget.h"
#include "router/policy/types.h"

namespace tandem::router {

enum class Leg : uint8_t { kPrefill, kAnswer };
enum class LegFailure : uint8_t {
  kRefused,    // 4xx: the request's fault; or the model itself has no answer to it (NaN)
  kBusy,       // 503: try another
  kFailed,     // another 5xx, or nonsense
  kLostPeer,   // another 5xx that says: the other leg's worker is gone or silent
  kDied,       // the connection failed, or the worker is down
  kUnreached,  // no connection came about: the worker knows nothing of the leg
};
enum class Order : uint8_t { kTogether, kPrefillFirst };

struct Decision {
  enum class Kind : uint8_t {
    kPlaceAll,     // choose workers for the whole request without excluded(); then placed() or
                   // not_placed(). A new handoff id.
    kPlaceAnswer,  // choose another answering worker; then placed_answer() or not_placed()
    kDispatch,     // send `leg` to `worker` with `attempt`, naming it `serial`
    kCancel,       // close that leg's connection now
    kDetach,       // its answer goes nowhere; close it once its first byte came, or after a while
    kRelease,      // have some decode worker take prefill's KV, for nothing
    kCharge,       // a failure of `worker`, for its circuit breaker
    // Exactly one of these is the last decision, and nothing is sent to the client after acting on
    // it:
    kRelay,    // send `leg`'s own answer word for word
    kAnswer,   // nothing was sent yet: answer `error`
    kBreak,    // a stream was begun: an error frame with `error`, then the end mark
    kFinish,   // the answer was complete
    kAbandon,  // the client is gone
  };
  Kind kind;
  Leg leg = Leg::kAnswer;
  WorkerId worker = kNoWorker;
  uint32_t serial = 0;
  uint32_t attempt = 0;
  Error error = {};
};
using Decisions = std::vector<Decision>;

struct LegsOptions {
  int max_dispatches = 4;  // of the answer leg: one and its repetitions
  Duration verdict_time = std::chrono::milliseconds(150);
  Duration progress_time = std::chrono::milliseconds(900);
  bool redials = true;        // another answer leg may use the handoff whatever became of the first
  bool keeps = false;         // a finished prefill keeps its KV for an answer leg that comes later
  bool cut_in_flight = true;  // an answer leg may be closed while KV is on its way to it
  bool releases = false;      // KV that nobody took is released by a decode leg of one token
  RetryBudget* budget = nullptr;  // outlives the machine; null: no shared bound
};

class Legs {
 public:
  explicit Legs(LegsOptions options = {}) : options_(options) {}

  Decisions start();
  // The answers to kPlaceAll and kPlaceAnswer.
  Decisions placed(const Placement& placement, Order order = Order::kTogether);
  Decisions placed_answer(WorkerId worker);
  Decisions not_placed();

  // 2xx, whole. `complete`: it is the answer to the request; no decode is needed.
  Decisions prefill_done(uint32_t serial, bool complete = false);
  // Prefill is another process than the one that the answer leg was told of: both begin anew.
  Decisions prefill_changed(uint32_t serial, TimePoint now);
  Decisions answer_byte(uint32_t serial);  // before handing bytes to the client
  Decisions answer_done(uint32_t serial);  // whole, and handed to the client
  Decisions failed(uint32_t serial, LegFailure failure, Error error, TimePoint now);
  Decisions worker_down(WorkerId worker, TimePoint now);  // health says so
  Decisions client_gone();
  Decisions deadline_passed();
  Decisions stop(Error error);    // the router ends
  Decisions tick(TimePoint now);  // at or after wakes_at()

  TimePoint wakes_at() const;  // max(): no need
  bool over() const { return over_; }
  bool began() const { return began_; }
  // Whether bytes of this serial may be handed to the client now.
  bool may_answer(uint32_t serial) const {
    return !over_ && answer_.live() && answer_.serial == serial;
  }
  const std::vector<WorkerId>& excluded() const { return excluded_; }

 private:
  struct LegState {
    enum class Phase : uint8_t { kNone, kLive, kSuspect, kDone, kDead };
    Phase phase = Phase::kNone;
    WorkerId worker = kNoWorker;
    uint32_t serial = 0;
    LegFailure failure = LegFailure::kDied;
    Error error = {};
    TimePoint verdict = TimePoint::max();
    bool live() const { return phase == Phase::kLive; }
    bool suspect() const { return phase == Phase::kSuspect; }
  };

  void dispatch(Leg leg, WorkerId worker, Decisions& out);
  void cancel(Leg leg, Decisions& out);
  void end(Decision last, Decisions& out);
  void lose(Leg leg, LegFailure failure, Error error, TimePoint now, Decisions& out);
  void lose_peer_of(Leg leg, TimePoint now, Decisions& out);
  void lose_prefill(TimePoint now, Decisions& out);
  void lose_answer(TimePoint now, Decisions& out);
  void charge(LegState& leg, Decisions& out);
  void place_all(const Error& why, TimePoint now, Decisions& out);
  bool may_repeat(TimePoint now);
  bool may_redial() const;
  bool prefill_unclaimed() const;
  void let_go_of_answer(Decisions& out);
  LegState& state(Leg leg) { return leg == Leg::kPrefill ? prefill_ : answer_; }

  LegsOptions options_;
  LegState prefill_;
  LegState answer_;
  std::vector<WorkerId> excluded_;
  Error last_error_;
  uint32_t next_serial_ = 1;
  uint32_t attempt_ = 0;
  int dispatches_ = 0;
  bool answer_waits_ = false;         // prefill first: the answer leg is sent when prefill is done,
  WorkerId next_answer_ = kNoWorker;  // to this worker; none: it is down, another is to be found
  bool claimed_ = false;              // an answer leg may have taken prefill's KV
  bool redialed_ = false;
  bool began_ = false;
  bool over_ = false;
  TimePoint must_progress_by_ = TimePoint::max();
};

}  // namespace tandem::router
