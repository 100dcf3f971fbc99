#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem::engine {

using protocol::FinishReason;
using protocol::StepOutcome;
using protocol::StepPlan;

Scheduler::Scheduler(SchedulerOptions options, KvPort& kv) : options_(options), kv_(kv) {
  options_.max_batch_rows = std::max(options_.max_batch_rows, options_.max_sequences);
}

Scheduler::Sequence* Scheduler::find(SequenceId id) {
  const auto at = sequences_.find(id);
  return at == sequences_.end() ? nullptr : &at->second;
}

Status Scheduler::add(SequenceSpec spec) {
  if (waiting() >= options_.max_waiting && !spec.accepted) {
    return make_error(503, "overloaded", "The worker's queue is full; try again later.");
  }
  const SequenceId id = spec.id;
  Sequence& sequence = sequences_[id];
  sequence.tokens = spec.prompt;
  sequence.order = next_order_++;
  sequence.arrived = prompt_rows_;
  sequence.expected = kv_.expect_cached(id, sequence.tokens, spec.scope);
  join(spec.tenant);
  sequence.spec = std::move(spec);
  waiting_.push_back(id);
  return {};
}

// A newcomer starts level with the least served, so that it neither starves nor is starved.
void Scheduler::join(const std::string& tenant) {
  if (service_.contains(tenant)) return;
  uint64_t least = 0;
  if (!service_.empty()) {
    least = std::ranges::min_element(service_, {}, [](const auto& entry) {
              return entry.second;
            })->second;
  }
  service_[tenant] = least;
}

void Scheduler::add_resident(SequenceSpec spec, protocol::ScoredToken first_token) {
  const SequenceId id = spec.id;
  Sequence& sequence = sequences_[id];
  sequence.tokens = spec.prompt;
  sequence.order = next_order_++;
  sequence.arrived = prompt_rows_;
  sequence.state = State::kRunning;
  sequence.computed = sequence.scheduled = static_cast<int32_t>(spec.prompt.size());
  sequence.admitted_before = true;
  sequence.resident = true;
  join(spec.tenant);
  sequence.spec = std::move(spec);
  running_.push_back(id);
  accept(sequence, std::move(first_token));
}

bool Scheduler::finish(SequenceId id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->state == State::kEnding) return false;
  end(*sequence);
  return true;
}

bool Scheduler::release_held(SequenceId id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->state != State::kHeld) return false;
  end(*sequence);
  return true;
}

bool Scheduler::roll_back(SequenceId id, int32_t count) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || count < 0) return false;
  const auto size = static_cast<int32_t>(sequence->tokens.size());
  if (count > size - static_cast<int32_t>(sequence->spec.prompt.size())) return false;
  sequence->tokens.resize(static_cast<size_t>(size - count));
  // The KV of the last token left is computed again with the next pass, which samples after it.
  const int32_t keep = std::min(sequence->computed, size - count - 1);
  sequence->computed = sequence->scheduled = keep;
  sequence->pending = 0;
  ++sequence->epoch;
  trim(*sequence);
  return true;
}

int32_t Scheduler::room(SequenceId id) const {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return 0;
  const Sequence& sequence = at->second;
  const int32_t context = options_.context_length - sequence.virtual_size();
  if (sequence.spec.max_tokens <= 0) return context;
  return std::min(context, sequence.spec.max_tokens - sequence.generated());
}

bool Scheduler::replace_end(SequenceId id, int32_t removed, std::span<const int32_t> tokens) {
  Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->state != State::kRunning || sequence->out > 0) return false;
  const auto count = static_cast<int32_t>(tokens.size());
  if (count > room(id) + removed) return false;
  if (removed > 0 && !roll_back(id, removed)) return false;
  sequence->tokens.insert(sequence->tokens.end(), tokens.begin(), tokens.end());
  sequence->lengthened = sequence->state == State::kRunning;
  if (room(id) > 0) return true;
  SequenceUpdate& update = updates_.emplace_back();
  update.id = id;
  update.finish = FinishReason::kLength;
  end(*sequence);
  return true;
}

// Once no pass that was planned before a roll-back is out.
void Scheduler::trim(Sequence& sequence) {
  if (sequence.out > 0 || sequence.state != State::kRunning) return;
  const auto size = static_cast<int32_t>(sequence.tokens.size());
  if (!kv_.truncate(sequence.spec.id, size, sequence.computed)) preempt(sequence);
}

bool Scheduler::wants_decode(const Sequence& sequence) const {
  if (sequence.state != State::kRunning || sequence.scheduled != sequence.virtual_size() - 1)
    return false;
  if (sequence.generated() <= 0) return false;  // the last row of a prompt belongs to its prefill
  if (sequence.spec.hold_after_first) return false;
  if (sequence.spec.one_token_at_a_time && sequence.pending > 0) return false;
  if (sequence.spec.max_tokens > 0 && sequence.generated() >= sequence.spec.max_tokens)
    return false;
  return sequence.virtual_size() < options_.context_length;
}

std::optional<StepPlan> Scheduler::next(TimePoint now) {
  drop_expired(now);
  if (in_flight() >= options_.max_in_flight) return std::nullopt;
  StepPlan plan;
  Step step{next_step_, {}};
  score_budget_ = options_.max_scored_rows;
  schedule_decodes(plan, step);
  int32_t budget = std::min(options_.prefill_chunk, options_.max_batch_rows - plan.rows());
  schedule_prompts(plan, step, budget);
  if (plan.sequences.empty()) return std::nullopt;
  plan.step = next_step_++;
  steps_.push_back(std::move(step));
  return plan;
}

void Scheduler::schedule_decodes(StepPlan& plan, Step& step) {
  std::vector<SequenceId> order = running_;  // preemption changes running_
  // Rows are left for prompts, however many sequences handoffs brought.
  const int32_t most =
      std::max(options_.max_sequences, options_.max_batch_rows - options_.prefill_chunk);
  const bool crowded = running() > most;
  if (crowded) {
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(turn_ % order.size()));
  }
  for (const SequenceId id : order) {
    if (plan.rows() >= most) break;
    if (crowded) ++turn_;
    Sequence* sequence = find(id);
    if (sequence == nullptr || !wants_decode(*sequence)) continue;
    // Rolled back with passes still out: its pages may be written until they are back.
    if (sequence->out > 0 && sequence->pending == 0) continue;
    if (!make_room_for(*sequence, sequence->virtual_size(), plan)) continue;
    add_rows(*sequence, 1, true, plan, step);
  }
}

bool Scheduler::make_room_for(Sequence& sequence, int32_t tokens, const StepPlan& plan) {
  while (!kv_.extend(sequence.spec.id, tokens)) {
    // Least important first: lowest priority, then youngest. Sequences with rows in flight cannot
    // give up pages.
    Sequence* victim = nullptr;
    for (const SequenceId id : running_) {
      Sequence& other = *find(id);
      const bool planned =
          std::ranges::any_of(plan.sequences, [&](const auto& s) { return s.sequence == id; });
      if (other.out > 0 || planned || other.state != State::kRunning) continue;
      // A peer knows its pages by their tags and may be copying them.
      if (other.spec.hold_after_first) continue;
      if (victim == nullptr || other.spec.priority < victim->spec.priority ||
          (other.spec.priority == victim->spec.priority && other.order > victim->order)) {
        victim = &other;
      }
    }
    if (victim == nullptr) return false;
    const bool itself = victim == &sequence;
    preempt(*victim);
    if (itself) return false;
  }
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  ++preemptions_;
  kv_.release(sequence.spec.id);
  leave_running(sequence.spec.id);
  sequence.state = State::kWaiting;
  sequence.resident = sequence.lengthened = false;
  sequence.computed = sequence.scheduled = 0;
  sequence.expected = kv_.expect_cached(sequence.spec.id, sequence.tokens, sequence.spec.scope);
  waiting_.push_back(sequence.spec.id);
}

void Scheduler::add_rows(Sequence& sequence, int32_t rows, bool sample, StepPlan& plan,
                         Step& step) {
  protocol::StepSequence out;
  out.sequence = sequence.spec.id;
  out.first_position = sequence.scheduled;
  out.sample = sample;
  out.adapter = sequence.spec.adapter;
  for (int32_t i = 0; i < rows; ++i) {
    const auto at = static_cast<size_t>(sequence.scheduled + i);
    out.tokens.push_back(at < sequence.tokens.size() ? sequence.tokens[at]
                                                     : protocol::kPendingToken);
  }
  const auto pages = kv_.pages(sequence.spec.id, sequence.scheduled + rows);
  out.pages.assign(pages.begin(), pages.end());
  plan.sequences.push_back(std::move(out));
  step.entries.push_back(StepEntry{sequence.spec.id, rows, sample, sequence.epoch});
  sequence.scheduled += rows;
  sequence.pending += sample ? 1 : 0;
  ++sequence.out;
  service_[sequence.spec.tenant] += static_cast<uint64_t>(rows);
}

void Scheduler::drop_expired(TimePoint now) {
  const std::vector<SequenceId> order = waiting_;
  for (const SequenceId id : order) {
    Sequence& sequence = *find(id);
    if (now < sequence.spec.deadline || sequence.admitted_before) continue;
    fail(sequence, Error{504, "deadline_exceeded",
                         "The request's deadline passed while it waited for memory."});
  }
}

void Scheduler::complete(StepOutcome outcome) {
  assert(!steps_.empty() && steps_.front().step == outcome.step);
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  for (const StepEntry& entry : step.entries) {
    Sequence* sequence = find(entry.id);
    assert(sequence != nullptr);  // a sequence outlives its passes
    --sequence->out;
    if (!outcome.error.empty() && sequence->state == State::kRunning) {
      fail(*sequence, Error{500, "engine_error", outcome.error});
      continue;
    }
    if (std::ranges::find(outcome.refused, entry.id) != outcome.refused.end() &&
        sequence->state == State::kRunning) {
      fail(*sequence, Error{500, "kv_integrity",
                            "The KV memory of this request failed its integrity check; the request "
                            "was ended before it could use it. Other requests are not concerned; "
                            "send it again."});
      continue;
    }
    const auto sampled =
        std::ranges::find(outcome.sampled, entry.id, &protocol::SampledToken::sequence);
    settle(*sequence, entry, sampled == outcome.sampled.end() ? nullptr : &*sampled);
  }
}

void Scheduler::settle(Sequence& sequence, const StepEntry& entry,
                       protocol::SampledToken* sampled) {
  const SequenceId id = entry.id;
  if (sequence.state == State::kEnding) {
    if (sequence.out == 0) {
      kv_.release(id);
      erase(sequence);
    }
    return;
  }
  if (entry.epoch != sequence.epoch) {
    trim(sequence);
    return;
  }
  if (sampled == nullptr ? entry.sample : sampled->failed) {
    // Whatever made the logits so may be in these rows' KV too: nothing of them is published.
    fail(sequence,
         Error{500, "non_finite_logits", "The model produced values that are not numbers."});
    return;
  }
  sequence.computed += entry.rows;
  kv_.computed(id, sequence.tokens,
               std::min(sequence.computed, static_cast<int32_t>(sequence.tokens.size())));
  if (!sequence.spec.generate &&
      sequence.computed == static_cast<int32_t>(sequence.tokens.size())) {
    SequenceUpdate& update = updates_.emplace_back();
    update.id = id;
    update.finish = FinishReason::kLength;
    end(sequence);
    return;
  }
  if (!entry.sample) return;
  --sequence.pending;
  accept(sequence, {sampled->token, sampled->logprob, std::move(sampled->top)});
}

void Scheduler::accept(Sequence& sequence, protocol::ScoredToken token) {
  SequenceUpdate& update = updates_.emplace_back();
  update.id = sequence.spec.id;
  const int32_t id = token.token;
  if (std::ranges::find(sequence.spec.stop_tokens, id) != sequence.spec.stop_tokens.end() &&
      !sequence.spec.hold_after_first) {
    update.finish = FinishReason::kStop;
    update.stop_token = std::move(token);
    end(sequence);
    return;
  }
  update.token = std::move(token);
  if (sequence.spec.hold_after_first) {
    // The decode side judges this token; here the pages wait for the transfer.
    leave_running(sequence.spec.id);
    sequence.state = State::kHeld;
    ++held_;
    return;
  }
  sequence.tokens.push_back(id);
  const auto size = static_cast<int32_t>(sequence.tokens.size());
  const int32_t generated = size - static_cast<int32_t>(sequence.spec.prompt.size());
  const bool full = (sequence.spec.max_tokens > 0 && generated >= sequence.spec.max_tokens) ||
                    size >= options_.context_length;
  if (!full) return;
  update.finish = FinishReason::kLength;
  end(sequence);
}

void Scheduler::fail(Sequence& sequence, Error error) {
  SequenceUpdate& update = updates_.emplace_back();
  update.id = sequence.spec.id;
  update.error = std::move(error);
  end(sequence);
}

void Scheduler::end(Sequence& sequence) {
  const SequenceId id = sequence.spec.id;
  if (sequence.state == State::kWaiting) std::erase(waiting_, id);
  if (sequence.state == State::kRunning) leave_running(id);
  if (sequence.state == State::kHeld) --held_;
  sequence.state = State::kEnding;
  if (sequence.out > 0) return;  // its last pass removes it
  kv_.release(id);
  erase(sequence);
}

void Scheduler::erase(Sequence& sequence) {
  const std::string tenant = sequence.spec.tenant;
  sequences_.erase(sequence.spec.id);
  const bool last = std::ranges::none_of(
      sequences_, [&](const auto& s) { return s.second.spec.tenant == tenant; });
  if (last) service_.erase(tenant);
}

void Scheduler::leave_running(SequenceId id) { std::erase(running_, id); }

std::vector<SequenceUpdate> Scheduler::take_updates() { return std::exchange(updates_, {}); }

}  // namespace tandem::engine
