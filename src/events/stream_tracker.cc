#include "events/stream_tracker.h"

#include <functional>
#include <utility>

namespace tandem::events {

using Kind = StreamTracker::Action::Kind;

namespace {

constexpr uint64_t kAnyDigest = 0;

uint64_t digest_of(std::string_view payload) {
  const uint64_t digest = std::hash<std::string_view>()(payload);
  return digest == kAnyDigest ? 1 : digest;
}

}  // namespace

void StreamTracker::ask(uint64_t from, bool verify, TimePoint now, Actions& out) {
  replaying_ = true;
  verifying_ = verify;
  ignoring_ = false;
  waits_since_ = now;
  expected_when_asked_ = expected_;
  out.push_back({.kind = Kind::kAsk, .sequence = from});
}

void StreamTracker::ask_all(TimePoint now, Actions& out) {
  if (options_.can_replay) ask(0, false, now, out);
}

// Is it still the publisher whose messages were delivered, and is there news?
void StreamTracker::probe(TimePoint now, Actions& out) {
  if (!options_.can_replay || replaying_) return;
  if (!expected_ || *expected_ == 0) return ask(0, false, now, out);
  ask(*expected_ - 1, true, now, out);
}

void StreamTracker::reset(Actions& out) {
  if (expected_) {
    ++counts_.resets;
    out.push_back({.kind = Kind::kReset});
  }
  expected_.reset();
  digests_.clear();
}

void StreamTracker::deliver(uint64_t sequence, std::string payload, Actions& out, bool snapshot) {
  expected_ = sequence + 1;
  digests_.push_back(snapshot ? kAnyDigest : digest_of(payload));
  if (digests_.size() > options_.remembered) digests_.pop_front();
  ++counts_.delivered;
  out.push_back({.kind = Kind::kDeliver, .sequence = sequence, .payload = std::move(payload)});
}

bool StreamTracker::same_as_before(uint64_t sequence, std::string_view payload) const {
  const uint64_t back = *expected_ - sequence;  // at least 1
  if (back > digests_.size()) return false;
  const uint64_t before = digests_[digests_.size() - back];
  return before == kAnyDigest || before == digest_of(payload);
}

// A live message while nothing is asked for. `fill`: a gap may still be asked for.
void StreamTracker::take(uint64_t sequence, std::string payload, bool fill, TimePoint now,
                         Actions& out) {
  if (!expected_ || sequence == *expected_) return deliver(sequence, std::move(payload), out);
  if (sequence < *expected_) {
    if (same_as_before(sequence, payload)) {
      ++counts_.repeated;
      return;
    }
    reset(out);  // a restart
    if (sequence == 0 || !options_.can_replay) return deliver(sequence, std::move(payload), out);
    held_bytes_ += payload.size();
    held_.push_back({sequence, std::move(payload)});
    return ask_all(now, out);
  }
  ++counts_.gaps;
  if (fill && options_.can_replay) {
    held_bytes_ += payload.size();
    held_.push_front({sequence, std::move(payload)});
    return ask(*expected_, false, now, out);
  }
  reset(out);
  deliver(sequence, std::move(payload), out);
}

StreamTracker::Actions StreamTracker::on_connected(TimePoint now) {
  Actions out;
  heard_ = now;
  if (std::exchange(connected_before_, true) && expected_) {
    probe(now, out);
  } else if (!replaying_) {
    ask_all(now, out);
  }
  return out;
}

StreamTracker::Actions StreamTracker::on_live(uint64_t sequence, std::string payload,
                                              TimePoint now) {
  Actions out;
  heard_ = now;
  if (!replaying_) {
    take(sequence, std::move(payload), true, now, out);
    return out;
  }
  held_bytes_ += payload.size();
  held_.push_back({sequence, std::move(payload)});
  // What does not fit is a gap, found when the reply has ended.
  while (held_bytes_ > options_.held_bytes && !held_.empty()) {
    held_bytes_ -= held_.front().payload.size();
    held_.pop_front();
  }
  return out;
}

StreamTracker::Actions StreamTracker::on_replay(uint64_t sequence, std::string payload,
                                                TimePoint now) {
  Actions out;
  if (!replaying_ || ignoring_) return out;
  waits_since_ = now;
  if (std::exchange(verifying_, false)) {
    if (expected_ && sequence + 1 == *expected_ && same_as_before(sequence, payload)) return out;
    reset(out);
    ignoring_ = true;  // all of it comes again, from its beginning
    return out;
  }
  ++counts_.replayed;
  if (expected_ && sequence < *expected_) {
    ++counts_.repeated;
    return out;
  }
  // The ring does not reach back so far: this may be a snapshot, which goes by the number of
  // another message.
  const bool jump = sequence > expected_.value_or(0);
  if (jump) reset(out);
  deliver(sequence, std::move(payload), out, jump);
  return out;
}

void StreamTracker::drain(TimePoint now, Actions& out) {
  // What was asked for and did not come does not exist any more.
  bool fill = expected_ != expected_when_asked_;
  while (!held_.empty() && !replaying_) {
    Held next = std::move(held_.front());
    held_.pop_front();
    held_bytes_ -= next.payload.size();
    take(next.sequence, std::move(next.payload), fill, now, out);
    fill = true;
  }
}

StreamTracker::Actions StreamTracker::on_replay_end(TimePoint now) {
  Actions out;
  if (!replaying_) return out;
  replaying_ = false;
  const bool gone = std::exchange(verifying_, false);  // the last message is not there any more
  if (gone) reset(out);
  if (std::exchange(ignoring_, false) || gone) {
    ask_all(now, out);
  } else {
    drain(now, out);
  }
  return out;
}

StreamTracker::Actions StreamTracker::on_tick(TimePoint now) {
  Actions out;
  if (replaying_) {
    if (now - waits_since_ < options_.replay_timeout) return out;
    // Nobody answers: go on with what is there.
    replaying_ = false;
    verifying_ = false;
    ignoring_ = false;
    heard_ = now;
    drain(now, out);
  } else if (connected_before_ && now - heard_ >= options_.probe_interval) {
    heard_ = now;
    probe(now, out);
  }
  return out;
}

StreamTracker::Actions StreamTracker::on_restart(TimePoint now) {
  Actions out;
  reset(out);
  held_.clear();
  held_bytes_ = 0;
  if (replaying_) {
    ignoring_ = true;  // it may be the old one's answer
    verifying_ = false;
  } else {
    ask_all(now, out);
  }
  return out;
}

}  // namespace tandem::events
