#include "router/legs/legs.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

namespace {

using Kind = Decision::Kind;

Error as_gateway_error(Leg leg, LegFailure failure, const Error& error) {
  const std::string name = leg == Leg::kPrefill ? "prefill" : "decode";
  if (failure == LegFailure::kBusy) {
    return Error{503, "overloaded", "the " + name + " workers are busy; retry in a moment"};
  }
  // Dead or frozen: the same request may go well once a worker is back, so clients are told when to
  // come again.
  const bool gone = failure == LegFailure::kDied || failure == LegFailure::kUnreached;
  const int status = gone ? 503 : 502;
  return Error{status, name + "_failed", "the " + name + " worker failed: " + error.message};
}

}  // namespace

Decisions Legs::start() {
  Decisions out;
  out.push_back({.kind = Kind::kPlaceAll});
  return out;
}

void Legs::dispatch(Leg leg, WorkerId worker, Decisions& out) {
  LegState& target = state(leg);
  target = LegState();
  target.phase = LegState::Phase::kLive;
  target.worker = worker;
  target.serial = next_serial_++;
  out.push_back({.kind = Kind::kDispatch,
                 .leg = leg,
                 .worker = worker,
                 .serial = target.serial,
                 .attempt = attempt_});
}

Decisions Legs::placed(const Placement& placement, Order order) {
  Decisions out;
  if (over_) return out;
  prefill_ = LegState();
  answer_ = LegState();
  attempt_ = 1;
  claimed_ = answer_waits_ = false;
  ++dispatches_;
  if (placement.prefill != kNoWorker) dispatch(Leg::kPrefill, placement.prefill, out);
  if (placement.prefill != kNoWorker && order == Order::kPrefillFirst) {
    answer_waits_ = true;
    next_answer_ = placement.answer;
  } else {
    dispatch(Leg::kAnswer, placement.answer, out);
  }
  return out;
}

Decisions Legs::placed_answer(WorkerId worker) {
  Decisions out;
  if (over_) return out;
  if (!answer_waits_) {
    ++attempt_;
    ++dispatches_;
  }
  answer_waits_ = false;
  dispatch(Leg::kAnswer, worker, out);
  return out;
}

Decisions Legs::not_placed() {
  Decisions out;
  if (over_) return out;
  if (last_error_.message.empty()) {
    last_error_ =
        Error{503, "no_workers", "no worker is ready to take the request; retry in a moment"};
  }
  end({.kind = Kind::kAnswer, .error = last_error_}, out);
  return out;
}

void Legs::cancel(Leg leg, Decisions& out) {
  LegState& target = state(leg);
  if (target.live())
    out.push_back(
        {.kind = Kind::kCancel, .leg = leg, .worker = target.worker, .serial = target.serial});
  if (target.live() || target.suspect()) target.phase = LegState::Phase::kDead;
}

bool Legs::prefill_unclaimed() const {
  return prefill_.phase == LegState::Phase::kDone && !claimed_ && !answer_.live();
}

void Legs::let_go_of_answer(Decisions& out) {
  const bool in_flight = prefill_.phase == LegState::Phase::kDone && answer_.live() && !began_;
  if (!in_flight || options_.cut_in_flight) return cancel(Leg::kAnswer, out);
  out.push_back({.kind = Kind::kDetach,
                 .leg = Leg::kAnswer,
                 .worker = answer_.worker,
                 .serial = answer_.serial});
  answer_.phase = LegState::Phase::kDead;
  claimed_ = true;
}

void Legs::end(Decision last, Decisions& out) {
  if (over_) return;
  const bool answered =
      last.kind == Kind::kFinish || (last.kind == Kind::kRelay && last.leg == Leg::kPrefill);
  cancel(Leg::kPrefill, out);
  let_go_of_answer(out);
  if (options_.releases && !answered && prefill_unclaimed())
    out.push_back({.kind = Kind::kRelease, .leg = Leg::kAnswer});
  over_ = true;
  must_progress_by_ = TimePoint::max();
  out.push_back(std::move(last));
}

Decisions Legs::prefill_done(uint32_t serial, bool complete) {
  Decisions out;
  if (over_ || !prefill_.live() || prefill_.serial != serial) return out;
  prefill_.phase = LegState::Phase::kDone;
  if (complete && !began_) {
    end({.kind = Kind::kRelay, .leg = Leg::kPrefill, .serial = serial}, out);
  } else if (answer_waits_ && next_answer_ == kNoWorker) {
    out.push_back({.kind = Kind::kPlaceAnswer});
  } else if (answer_waits_) {
    answer_waits_ = false;
    dispatch(Leg::kAnswer, next_answer_, out);
  }
  return out;
}

Decisions Legs::prefill_changed(uint32_t serial, TimePoint now) {
  Decisions out;
  if (over_ || began_ || !prefill_.live() || prefill_.serial != serial) return out;
  prefill_.phase = LegState::Phase::kDead;
  place_all({503, "prefill_failed", "the prefill worker was restarted; send the request again"},
            now, out);
  return out;
}

Decisions Legs::answer_byte(uint32_t serial) {
  if (!may_answer(serial)) return {};
  began_ = claimed_ = true;
  must_progress_by_ = TimePoint::max();
  return {};
}

Decisions Legs::answer_done(uint32_t serial) {
  Decisions out;
  if (over_ || !answer_.live() || answer_.serial != serial) return out;
  answer_.phase = LegState::Phase::kDone;
  end({.kind = Kind::kFinish}, out);
  return out;
}

Decisions Legs::failed(uint32_t serial, LegFailure failure, Error error, TimePoint now) {
  Decisions out;
  if (over_) return out;
  for (const Leg leg : {Leg::kPrefill, Leg::kAnswer}) {
    if (!state(leg).live() || state(leg).serial != serial) continue;
    lose(leg, failure, std::move(error), now, out);
    break;
  }
  return out;
}

Decisions Legs::worker_down(WorkerId worker, TimePoint now) {
  Decisions out;
  if (answer_waits_ && next_answer_ == worker) next_answer_ = kNoWorker;
  for (const Leg leg : {Leg::kPrefill, Leg::kAnswer}) {
    if (over_ || !state(leg).live() || state(leg).worker != worker) continue;
    const uint32_t serial = state(leg).serial;
    out.push_back({.kind = Kind::kCancel, .leg = leg, .worker = worker, .serial = serial});
    lose(leg, LegFailure::kDied, Error{502, "worker_down", "it stopped answering"}, now, out);
  }
  return out;
}

void Legs::lose(Leg leg, LegFailure failure, Error error, TimePoint now, Decisions& out) {
  LegState& lost = state(leg);
  LegState& other = state(leg == Leg::kPrefill ? Leg::kAnswer : Leg::kPrefill);
  lost.failure = failure;
  lost.error = std::move(error);
  if (failure == LegFailure::kRefused) {
    lost.phase = LegState::Phase::kDead;
    if (began_) {
      end({.kind = Kind::kBreak, .error = lost.error}, out);
    } else {
      end({.kind = Kind::kRelay, .leg = leg, .serial = lost.serial}, out);
    }
    return;
  }
  if (failure == LegFailure::kLostPeer && !began_ && other.worker != kNoWorker) {
    return lose_peer_of(leg, now, out);
  }
  // An answered error may be the echo of the other leg's death; wait a moment for that news.
  if (failure == LegFailure::kFailed && other.live() && !began_) {
    lost.phase = LegState::Phase::kSuspect;
    lost.verdict = now + options_.verdict_time;
    return;
  }
  // With this news a suspect on the other side is cleared: it only felt the death.
  if (other.suspect() && (failure == LegFailure::kDied || failure == LegFailure::kUnreached))
    other.phase = LegState::Phase::kDead;
  leg == Leg::kPrefill ? lose_prefill(now, out) : lose_answer(now, out);
}

void Legs::lose_peer_of(Leg leg, TimePoint now, Decisions& out) {
  const Leg peer = leg == Leg::kPrefill ? Leg::kAnswer : Leg::kPrefill;
  LegState& lost = state(peer);
  state(leg).phase = LegState::Phase::kDead;
  if (leg == Leg::kAnswer && lost.live() && !redialed_ && may_repeat(now)) {
    redialed_ = true;
    last_error_ = as_gateway_error(peer, LegFailure::kDied, answer_.error);
    out.push_back({.kind = Kind::kPlaceAnswer});
    return;
  }
  cancel(peer, out);
  lost.failure = LegFailure::kDied;
  lost.error = state(leg).error;
  peer == Leg::kPrefill ? lose_prefill(now, out) : lose_answer(now, out);
}

void Legs::charge(LegState& leg, Decisions& out) {
  if (leg.failure != LegFailure::kRefused && leg.failure != LegFailure::kBusy) {
    out.push_back({.kind = Kind::kCharge, .worker = leg.worker, .serial = leg.serial});
  }
  if (std::find(excluded_.begin(), excluded_.end(), leg.worker) == excluded_.end())
    excluded_.push_back(leg.worker);
}

bool Legs::may_repeat(TimePoint now) {
  return dispatches_ < options_.max_dispatches &&
         (options_.budget == nullptr || options_.budget->take(now));
}

bool Legs::may_redial() const {
  const bool unreached = answer_.failure == LegFailure::kUnreached;
  if (prefill_.live()) return options_.redials || unreached;
  return prefill_.phase == LegState::Phase::kDone && options_.keeps && unreached;
}

void Legs::place_all(const Error& why, TimePoint now, Decisions& out) {
  cancel(Leg::kPrefill, out);
  cancel(Leg::kAnswer, out);
  last_error_ = why;
  if (!may_repeat(now)) return end({.kind = Kind::kAnswer, .error = why}, out);
  if (options_.releases && prefill_unclaimed())
    out.push_back({.kind = Kind::kRelease, .leg = Leg::kAnswer});
  out.push_back({.kind = Kind::kPlaceAll});
}

void Legs::lose_prefill(TimePoint now, Decisions& out) {
  prefill_.phase = LegState::Phase::kDead;
  charge(prefill_, out);
  if (began_) {
    must_progress_by_ = now + options_.progress_time;
    return;
  }
  place_all(as_gateway_error(Leg::kPrefill, prefill_.failure, prefill_.error), now, out);
}

void Legs::lose_answer(TimePoint now, Decisions& out) {
  answer_.phase = LegState::Phase::kDead;
  claimed_ = claimed_ ||
             (answer_.failure != LegFailure::kUnreached && answer_.failure != LegFailure::kBusy);
  charge(answer_, out);
  const Error why = as_gateway_error(Leg::kAnswer, answer_.failure, answer_.error);
  if (began_) {
    end({.kind = Kind::kBreak, .error = why}, out);
  } else if (may_redial() && may_repeat(now)) {
    last_error_ = why;
    out.push_back({.kind = Kind::kPlaceAnswer});
  } else {
    place_all(why, now, out);
  }
}

Decisions Legs::client_gone() {
  Decisions out;
  end({.kind = Kind::kAbandon}, out);
  return out;
}

Decisions Legs::deadline_passed() {
  return stop({504, "request_timeout", "the request took longer than its time limit"});
}

Decisions Legs::stop(Error error) {
  Decisions out;
  end({.kind = began_ ? Kind::kBreak : Kind::kAnswer, .error = std::move(error)}, out);
  return out;
}

Decisions Legs::tick(TimePoint now) {
  Decisions out;
  if (!over_ && must_progress_by_ <= now) {
    end({.kind = Kind::kBreak,
         .error = as_gateway_error(Leg::kPrefill, prefill_.failure, prefill_.error)},
        out);
  }
  if (!over_ && prefill_.suspect() && prefill_.verdict <= now) lose_prefill(now, out);
  if (!over_ && answer_.suspect() && answer_.verdict <= now) lose_answer(now, out);
  return out;
}

TimePoint Legs::wakes_at() const {
  if (over_) return TimePoint::max();
  TimePoint at = must_progress_by_;
  if (prefill_.suspect()) at = std::min(at, prefill_.verdict);
  if (answer_.suspect()) at = std::min(at, answer_.verdict);
  return at;
}

}  // namespace tandem::router
