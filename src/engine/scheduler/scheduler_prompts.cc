// The order in which prompts are computed, and admission.
#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/scheduler/scheduler.h"

namespace tandem::engine {

using protocol::StepPlan;

// The lesser comes first.
struct Scheduler::Turn {
  bool reads_prompt = true;  // false: of a sequence whose tokens are on their way to somebody
  int32_t priority = 0;      // negated
  uint64_t service = 0;
  int64_t wait = 0;
  uint64_t order = 0;
  SequenceId id = 0;
  State state = State::kWaiting;
  auto rank() const { return std::tuple(!reads_prompt, priority, service, wait, order); }
};

Scheduler::Turn Scheduler::turn_of(const Sequence& sequence) const {
  const int32_t there = sequence.state == State::kRunning ? sequence.scheduled : sequence.expected;
  const int64_t left = static_cast<int64_t>(sequence.tokens.size()) - there;
  const auto waited = static_cast<int64_t>(prompt_rows_ - sequence.arrived);
  return {.reads_prompt = sequence.state == State::kWaiting || sequence.generated() == 0,
          .priority = -sequence.spec.priority,
          .service = service_.at(sequence.spec.tenant),
          .wait = options_.patience > 0 ? options_.patience * left - waited : 0,
          .order = sequence.order,
          .id = sequence.spec.id,
          .state = sequence.state};
}

bool Scheduler::wants_prompt(const Sequence& sequence) const {
  const auto size = static_cast<int32_t>(sequence.tokens.size());
  if (sequence.state != State::kRunning || sequence.pending > 0 || sequence.scheduled >= size)
    return false;
  if (wants_decode(sequence)) return false;  // it had no room for its one row
  if (sequence.scheduled == size - 1 && sequence.generated() > 0) return false;
  // Rolled back, passes still out.
  return sequence.out == 0 || sequence.scheduled != sequence.computed;
}

// What waits for a prefix that somebody else computes has less and less to do.
void Scheduler::refresh_expected() {
  constexpr size_t kMost = 64;
  for (size_t at = 0; at < std::min(kMost, waiting_.size()); ++at) {
    Sequence& sequence = *find(waiting_[at]);
    sequence.expected = kv_.expect_cached(sequence.spec.id, sequence.tokens, sequence.spec.scope);
  }
}

void Scheduler::schedule_prompts(StepPlan& plan, Step& step, int32_t& budget) {
  if (budget <= 0) return;
  const auto later = [](const Turn& a, const Turn& b) { return a.rank() > b.rank(); };
  refresh_expected();
  std::vector<Turn> turns;
  int32_t admitted = 0;
  for (const SequenceId id : running_) {
    const Sequence& sequence = *find(id);
    admitted += sequence.resident ? 0 : 1;
    if (wants_prompt(sequence)) turns.push_back(turn_of(sequence));
  }
  for (const SequenceId id : waiting_) turns.push_back(turn_of(*find(id)));
  std::ranges::make_heap(turns, later);
  bool room = true;
  while (budget > 0 && !turns.empty()) {
    std::ranges::pop_heap(turns, later);
    Turn turn = turns.back();
    turns.pop_back();
    Sequence* sequence = find(turn.id);
    if (sequence == nullptr || sequence->state != turn.state) continue;  // preempted meanwhile
    if (const uint64_t service = service_.at(sequence->spec.tenant); service != turn.service) {
      turn.service = service;
      turns.push_back(turn);
      std::ranges::push_heap(turns, later);
      continue;
    }
    if (turn.state == State::kWaiting) {
      if (!room || admitted >= options_.max_sequences) continue;
      if (sequence->spec.score_prompt && score_budget_ <= 0) {
        room = false;
        continue;
      }
      const Admission admission = admit(*sequence);
      // Nobody overtakes it: it would starve behind smaller ones.
      room = admission != Admission::kNoRoom;
      if (admission != Admission::kYes) continue;
      ++admitted;
    }
    add_prompt_rows(*sequence, plan, step, budget);
  }
}

Scheduler::Admission Scheduler::admit(Sequence& sequence) {
  const SequenceId id = sequence.spec.id;
  // Headroom for each sequence that will soon want its next block. Alone, it must not wait for it.
  auto cached = kv_.admit(id, sequence.tokens, sequence.spec.scope, running() + 1);
  if (!cached && running() > 0) return Admission::kNoRoom;
  if (!cached) cached = kv_.admit(id, sequence.tokens, sequence.spec.scope, 0);
  if (!cached) {
    if (kv_.could_fit(static_cast<int32_t>(sequence.tokens.size()))) return Admission::kNoRoom;
    fail(sequence, Error{503, "kv_memory_lost",
                         "Too much memory of this worker is quarantined to hold the sequence."});
    return Admission::kFailed;
  }
  std::erase(waiting_, id);
  running_.push_back(id);
  sequence.state = State::kRunning;
  sequence.computed = sequence.scheduled = *cached;
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    SequenceUpdate& update = updates_.emplace_back();
    update.id = id;
    update.admitted_cached = cached;
  }
  return Admission::kYes;
}

bool Scheduler::add_prompt_rows(Sequence& sequence, StepPlan& plan, Step& step, int32_t& budget) {
  const auto size = static_cast<int32_t>(sequence.tokens.size());
  const auto prompt_size = static_cast<int32_t>(sequence.spec.prompt.size());
  const int32_t first = sequence.scheduled;
  // What was generated is computed again as it was computed first, whose numerics may be others
  // than a prompt's: not in the same rows.
  const bool prompt = first < prompt_size;
  int32_t rows = std::min(budget, (prompt ? std::min(prompt_size, size) : size) - first);
  const bool scores = sequence.spec.score_prompt && first < prompt_size - 1;
  if (scores) rows = std::min(rows, score_budget_);
  if (rows <= 0) return false;
  // Promised pages are missing only while a peer reads some: the next pass tries again.
  const int32_t end = first + rows;
  const bool covered =
      sequence.lengthened ? make_room_for(sequence, end, plan) : kv_.extend(sequence.spec.id, end);
  if (!covered) return false;
  add_rows(sequence, rows, end == size && sequence.spec.generate, plan, step);
  if (scores) {
    const auto at = sequence.tokens.begin() + first + 1;
    const int32_t targets = std::min(rows, prompt_size - 1 - first);
    plan.sequences.back().targets.assign(at, at + targets);
    score_budget_ -= targets;
  }
  plan.sequences.back().prompt = prompt;
  plan.sequences.back().pool = sequence.spec.pool_prompt;
  budget -= rows;
  prompt_rows_ += static_cast<uint64_t>(rows);
  return true;
}

int32_t Scheduler::next_waiting_tokens() const {
  const Sequence* next = nullptr;
  for (const SequenceId id : waiting_) {
    const Sequence& sequence = sequences_.at(id);
    if (next == nullptr || turn_of(sequence).rank() < turn_of(*next).rank()) next = &sequence;
  }
  return next == nullptr ? 0 : static_cast<int32_t>(next->tokens.size());
}

}  // namespace tandem::engine
