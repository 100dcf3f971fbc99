// Scheduler: which rows the next forward pass computes. Pure: sequences, sampled tokens and time
// come in, step plans and sequence updates go out.
//
// Continuous batching: every pass carries one row of each decoding sequence and, with what is left
// of the token budget, chunks of prompts: highest priority first, then the tenant that was served
// least, then the prompt of which least is left to compute (see SchedulerOptions::patience), so
// that nobody's ten new tokens wait for somebody's ten thousand. Sequences are admitted by pages
// when their turn comes; one that finds no room is not overtaken by others that wait. When a
// decoding sequence cannot get its
// next page, the lowest-priority, youngest sequence is preempted: its pages go, its tokens stay,
// and it is computed again later (from the cache where it survived). A prefill leg is never
// preempted: its pages are announced to a peer. Received sequences come on top of those admitted
// here; when there are more than may decode at once they take turns. Up to `max_in_flight` passes
// may be out at once: rows of the later ones hold kPendingToken where the token is still being
// sampled. A sequence that ends meanwhile keeps its pages until its last pass is back. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/scheduler/kv_port.h"
#include "protocol/step_plan.h"
#include "protocol/token_event.h"

namespace tandem::engine {

using protocol::SequenceId;

struct SchedulerOptions {
  int32_t max_batch_rows = 512;  // rows of one pass; at least max_sequences
  int32_t prefill_chunk = 256;   // prompt rows of one pass
  int32_t max_sequences = 64;    // admitted at once, and (at least) decoded in one pass
  int32_t max_waiting = 4096;
  int32_t max_in_flight = 1;
  int32_t context_length = 2048;  // longest sequence, prompt and output
  int32_t max_scored_rows = 256;  // rows of one pass whose logits are wanted for the prompt's sake
  // Shortest remaining prompt first, with aging: a prompt of which r rows are left, and which has
  // waited while w rows of prompts were computed, comes before one with a greater patience * r - w.
  // So it is overtaken only by what comes before patience * r rows are computed. 0: first come.
  int32_t patience = 8;
};

struct SequenceSpec {
  SequenceId id = 0;
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;  // 0: until the context is full
  std::vector<int32_t> stop_tokens;
  std::string tenant;
  KvScope scope;
  int32_t adapter = -1;  // index in the model
  int32_t priority = 0;
  TimePoint deadline = TimePoint::max();  // to be admitted by
  bool hold_after_first = false;          // prefill leg: stop after one token and keep the pages
  bool generate = true;                   // false: ends (by length) with its prompt
  bool score_prompt = false;              // logprobs of the prompt's tokens are wanted
  bool pool_prompt = false;               // an embedding of the prompt is wanted
  bool one_token_at_a_time = false;       // what may follow a token depends on it
  bool accepted = false;  // another choice of a request that runs: no bound refuses it
};

// What happened to a sequence, in order. At most one of the last two ends it.
struct SequenceUpdate {
  SequenceId id = 0;
  std::optional<int32_t> admitted_cached;  // first admission: cached prompt tokens
  std::optional<protocol::ScoredToken> token;
  std::optional<protocol::ScoredToken> stop_token;  // with `finish`: what ended it
  std::optional<protocol::FinishReason> finish;
  std::optional<Error> error;
};

class Scheduler {
 public:
  Scheduler(SchedulerOptions options, KvPort& kv);

  // Error 503 "overloaded" when the queue is full.
  Status add(SequenceSpec spec);
  // A sequence whose prompt KV is in its pages already (the receiving side of a handoff). Its first
  // token follows through accept_first.
  void add_resident(SequenceSpec spec, protocol::ScoredToken first_token);

  // Ends a sequence from outside (a stop string, a client that left). No update is emitted. False
  // if unknown.
  bool finish(SequenceId id);
  // Releases the pages of a sequence that was held after its first token.
  bool release_held(SequenceId id);
  // Takes `count` tokens off the end, with their pages. Only generated tokens; false otherwise or
  // if unknown. A sequence that cannot go on in the pages it has (see KvPort::truncate) is computed
  // again like one that was preempted.
  bool roll_back(SequenceId id, int32_t count);

  // The last `removed` tokens give way to `tokens`, which nobody sampled and which count as
  // generated. False, and nothing changes, when a pass of the sequence is out or there is no room
  // for them.
  bool replace_end(SequenceId id, int32_t removed, std::span<const int32_t> tokens);
  // How many more tokens it may generate.
  int32_t room(SequenceId id) const;

  // The next pass, or nothing when there is no work or enough passes are out.
  std::optional<protocol::StepPlan> next(TimePoint now);
  void complete(protocol::StepOutcome outcome);
  std::vector<SequenceUpdate> take_updates();

  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Tokens of the sequence that is admitted next, 0 when none waits.
  int32_t next_waiting_tokens() const;
  int32_t held() const { return held_; }
  int32_t in_flight() const { return static_cast<int32_t>(steps_.size()); }
  uint64_t preemptions() const { return preemptions_; }

 private:
  enum class State : uint8_t { kWaiting, kRunning, kEnding, kHeld };
  struct Sequence {
    SequenceSpec spec;
    std::vector<int32_t> tokens;  // prompt, then generated
    State state = State::kWaiting;
    int32_t computed = 0;   // rows whose pass is back
    int32_t scheduled = 0;  // rows whose pass is back or out
    int32_t pending = 0;    // tokens being sampled
    int32_t out = 0;        // passes out that hold rows of this sequence
    uint32_t epoch = 0;     // bumped by roll_back: rows of older epochs count for nothing
    bool admitted_before = false;
    bool lengthened = false;  // by replace_end: beyond the pages that admission promised
    bool resident = false;    // came with its KV, and was not preempted since
    uint64_t order = 0;
    uint64_t arrived = 0;  // prompt_rows_ then
    int32_t expected = 0;  // while it waits: tokens that the cache may have
    int32_t virtual_size() const { return static_cast<int32_t>(tokens.size()) + pending; }
    int32_t generated() const { return virtual_size() - static_cast<int32_t>(spec.prompt.size()); }
  };
  struct StepEntry {
    SequenceId id;
    int32_t rows;
    bool sample;
    uint32_t epoch;
  };
  struct Step {
    uint64_t step;
    std::vector<StepEntry> entries;
  };

  Sequence* find(SequenceId id);
  bool wants_decode(const Sequence& sequence) const;
  void schedule_decodes(protocol::StepPlan& plan, Step& step);
  // Prompts of running sequences and those that wait, in the order of their turns.
  struct Turn;
  Turn turn_of(const Sequence& sequence) const;
  bool wants_prompt(const Sequence& sequence) const;
  void schedule_prompts(protocol::StepPlan& plan, Step& step, int32_t& budget);
  enum class Admission : uint8_t { kYes, kNoRoom, kFailed };
  Admission admit(Sequence& sequence);
  void refresh_expected();
  // Prompt rows, as many as the budgets allow; false when they allow none.
  bool add_prompt_rows(Sequence& sequence, protocol::StepPlan& plan, Step& step, int32_t& budget);
  void add_rows(Sequence& sequence, int32_t rows, bool sample, protocol::StepPlan& plan,
                Step& step);
  bool make_room_for(Sequence& sequence, int32_t tokens, const protocol::StepPlan& plan);
  void trim(Sequence& sequence);
  void preempt(Sequence& sequence);
  void join(const std::string& tenant);
  void drop_expired(TimePoint now);
  void settle(Sequence& sequence, const StepEntry& entry, protocol::SampledToken* sampled);
  void accept(Sequence& sequence, protocol::ScoredToken token);
  void end(Sequence& sequence);  // pages go now or when its last pass is back
  void erase(Sequence& sequence);
  void fail(Sequence& sequence, Error error);
  void leave_running(SequenceId id);

  SchedulerOptions options_;
  KvPort& kv_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<SequenceId> running_;          // admission order
  std::vector<SequenceId> waiting_;          // arrival order, preempted ones keep theirs
  std::map<std::string, uint64_t> service_;  // tokens scheduled per tenant that has sequences
  std::deque<Step> steps_;
  std::vector<SequenceUpdate> updates_;
  uint64_t next_step_ = 1;
  uint64_t next_order_ = 1;
  uint64_t prompt_rows_ = 0;  // scheduled so far: the clock of patience
  uint64_t preemptions_ = 0;
  uint64_t turn_ = 0;  // where decoding begins when a pass cannot hold a row of each
  int32_t held_ = 0;
  int32_t score_budget_ = 0;  // what is left of max_scored_rows in the pass that is being planned
};

}  // namespace tandem::engine
