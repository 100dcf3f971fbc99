// Engine: sequences in, token events out. Puts the scheduler, paged memory, the executor and the
// text side together.
//
// Two threads of its own: the engine thread owns every decision (scheduler, page tables, text of
// each sequence), the device thread runs passes. All public functions may be called from any thread
// and return at once; sinks run on the engine thread (LayerProgress on the device thread) and must
// not wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/cache_guard.h"
#include "engine/choice_text.h"
#include "engine/executor.h"
#include "engine/grammar_masks.h"
#include "engine/kv_report.h"
#include "engine/scheduler/scheduler.h"
#include "kv/manager/kv_manager.h"
#include "kv/manager/reserve_queue.h"
#include "model/model.h"
#include "observe/metrics.h"
#include "protocol/request.h"
#include "protocol/token_event.h"
#include "text/tokenizer.h"

namespace tandem::engine {

using kv::PageTag;

struct EngineOptions {
  int32_t prefill_chunk = 256;
  int32_t prompt_patience = 8;  // SchedulerOptions::patience
  int32_t max_sequences = 64;
  int32_t max_waiting = 4096;
  int32_t max_in_flight = 1;
  std::string lineage = {};
  GuardOptions integrity = {};
  kv::KvObserver* kv_observer = nullptr;  // hears on the engine thread; outlives the engine
};

// Events of one request, in this order: PromptEvent when asked for; then each choice's text and its
// finish, interleaved between choices; or, anywhere, one error that ends the request. With best_of
// above n nothing of a choice comes before all of them are ranked by mean logprob per token; the
// best n come then, numbered by rank.
using EventSink = std::function<void(protocol::TokenEvent)>;

struct Embedding {
  std::vector<float> values;  // of length 1; all zero when the hidden states are
  protocol::Usage usage;
};
using EmbedSink = std::function<void(Result<Embedding>)>;

// What a prefill leg reports, in order: admitted; for each pass the pages it brings, then layer
// progress (from the device thread); done; or one error.
struct PrefillAdmitted {
  int32_t cached_tokens = 0;
};
// Pages of the blocks that follow those reported before, [block][group]; page -1 where a window had
// passed already.
struct PrefillPages {
  std::vector<PageTag> pages;
  // Level full: as many, of those pages that come from the cache; the others are empty.
  std::vector<std::vector<uint64_t>> digests = {};
};
struct LayerProgress {
  int32_t layer = 0;
  int32_t end_token = 0;  // this layer's KV is final for every token before it
};
struct PrefillDone {
  std::vector<protocol::ScoredToken> first_tokens;  // of choice 0
  // Level full: [block][group] of the prompt, as computed; empty where none is known.
  std::vector<std::vector<uint64_t>> digests = {};
};
using PrefillEvent =
    std::variant<PrefillAdmitted, PrefillPages, LayerProgress, PrefillDone, protocol::ErrorEvent>;
using PrefillSink = std::function<void(PrefillEvent)>;

struct Received {
  SequenceId id = 0;
  std::vector<uint32_t> first_missing;  // by page group: blocks from here on are to be filled
  std::vector<PageTag> pages;           // [block][group]; page -1: not live at the prompt's end
};

struct EngineStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t held = 0;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;
  int32_t pages_used = 0;
  int32_t pages_quarantined = 0;
  double prefill_tokens_per_second = 0;  // 0: not measured yet
};

class Engine {
 public:
  // `arena` outlives the engine. `on_allocate` runs on the engine thread (page generations for
  // peers).
  Engine(std::unique_ptr<model::Model> model, std::shared_ptr<const text::Tokenizer> tokenizer,
         ops::PageArenaView arena, std::function<void(int32_t, uint64_t)> on_allocate,
         EngineOptions options, observe::Metrics& metrics);
  ~Engine();  // aborts what runs, without events

  // Longest sequence: the model's context or what all pages hold, whichever is less. (A group with
  // a window holds only what is live.)
  int32_t context_length() const { return context_length_; }
  const model::Model& model() const { return *model_; }
  const ops::PageLayout& layout() const { return arena_.layout; }
  const std::vector<model::PageGroup>& page_groups() const { return page_groups_; }
  // What all pages hold if sequences are as long as they may be.
  int64_t token_capacity() const;

  // Runs every choice of a request over one computation of its prompt: the others start when the
  // first has computed it, and share its full blocks. Not more than a quarter of max_sequences of
  // one request run at once, so that others find room. Errors: 400 context_length_exceeded, 400 for
  // tokens outside the vocabulary and parameters out of bounds, 404 adapter_not_found.
  Result<SequenceId> generate(protocol::GenerateRequest request, EventSink sink);
  // Prefill leg: one token of choice 0 is sampled, then the pages wait for release_held. Errors: as
  // generate; 400 for a request that needs one leg.
  Result<SequenceId> prefill(protocol::GenerateRequest request, PrefillSink sink);
  // One vector for a prompt, through the same scheduler and passes. Errors: as generate; later, 500
  // non_finite_logits.
  Result<SequenceId> embed(protocol::EmbedRequest request, EmbedSink sink);
  // Compiles, or finds, what generate() and prefill() will need for such a grammar, so that they
  // need not: to be called where that may take its time, and kept until they were called. Errors:
  // as grammar::compile.
  using GrammarPointer = std::shared_ptr<const grammar::Grammar>;
  Result<GrammarPointer> compile_grammar(const protocol::GrammarSpec& spec) const;
  void abort(SequenceId id);  // no event follows; harmless when it has ended
  void release_held(SequenceId id);

  // Receiving side of a handoff. `done` runs on the engine thread, with nothing when there is no
  // room, or when abandon_received came first.
  SequenceId reserve(std::vector<int32_t> tokens, KvScope scope, Duration wait,
                     std::function<void(std::optional<Received>)> done);
  // The blocks are proven. `request.prompt` are the offered tokens. `proven`: digests of the pages
  // that came (level full). `started` runs before the first event.
  void start_received(SequenceId id, protocol::GenerateRequest request,
                      std::vector<protocol::ScoredToken> first_tokens, int32_t cached_tokens,
                      std::vector<IntegrityReport::Fresh> proven, EventSink sink,
                      std::function<void()> started);
  // Also while it still waits for room: it leaves the queue at once. `may_be_written`: see
  // KvManager::receive_failed.
  void abandon_received(SequenceId id, bool may_be_written = false);
  // Sending side.
  void add_readers(std::vector<PageTag> tags);
  void drop_readers(std::vector<PageTag> tags);

  // What the cache holds (kv_report.h). The callbacks run on the engine's thread. `tell` hears of
  // the progress and then once of its end, or of one error: see CacheGuard::verify.
  void cache_stat(std::function<void(const KvStat&)> done);
  void list_cache(KvListQuery query, std::function<void(KvListing)> done);
  void drop_cache(KvDropQuery query, std::function<void(size_t blocks)> done);
  void verify_cache(std::function<void(const Result<VerifyProgress>&)> tell);

  kv::IntegrityLevel integrity() const { return options_.integrity.level; }
  // A part of a block did not come as its sender described it.
  void report_corrupt(CorruptCopy copy);
  // A peer says so of this sequence's pages: those that have digests are compared.
  void recheck(SequenceId id);

  EngineStats stats() const;
  // A pass has been out for longer than `limit`: the device hangs.
  bool stalled(Duration limit = std::chrono::seconds(60)) const;

 private:
  struct RankedChoice {
    double mean_logprob = 0;
    protocol::TextEvent text;
    protocol::FinishEvent finish;
  };
  struct Group {        // one request with all its choices
    SequenceId id = 0;  // of its first sequence
    protocol::GenerateRequest request;
    EventSink sink;
    int32_t adapter = -1;
    GrammarPointer grammar;  // null: none
    uint64_t seed = 0;
    TimePoint submitted{};
    TimePoint deadline = TimePoint::max();
    int32_t next_choice = 1;
    std::vector<SequenceId> running;
    int32_t cached_tokens = 0;
    protocol::PromptEvent prompt;
    bool prompt_sent = false;
    std::vector<RankedChoice> ranked;
    bool ranks() const { return request.sampling.best_of > request.sampling.n; }
  };
  struct Generation {  // one sequence
    std::shared_ptr<SequenceState> state;
    int32_t prompt_tokens = 0;
    int32_t cached_tokens = 0;
    // Of a request's choice.
    std::shared_ptr<Group> group;
    std::optional<ChoiceText> text;
    std::optional<protocol::TextEvent> kept;  // all of it so far, while its rank is not known
    TimePoint last_token{};
    // With a grammar.
    std::optional<grammar::Matcher> matcher;
    std::shared_ptr<GrammarMasks::Mask> mask;  // of the token that is sampled next
    // Of a prefill leg.
    PrefillSink prefill_sink;
    size_t pages_told = 0;  // of its page table
    // Of an embedding.
    EmbedSink embed_sink;
    std::vector<float> pooled;
  };
  struct Meters {
    explicit Meters(observe::Metrics& metrics);
    observe::Gauge running, waiting, pages_used, pages_cached, pages_free, index_bytes, held;
    observe::Counter prompt_tokens, cached_tokens, generation_tokens, forced_tokens, preemptions,
        evictions;
    observe::Counter windows_passed, steps, non_finite;
    observe::Histogram step_seconds, ttft_seconds, itl_seconds;
  };

  // The adapter's index, -1 for none.
  Result<int32_t> check_prompt(std::span<const int32_t> prompt, int32_t more,
                               const std::string& adapter) const;
  Result<int32_t> check(const protocol::GenerateRequest& request) const;
  void post(std::function<void()> command);
  void loop();
  void pump();
  void serve_reserves(TimePoint now);
  std::shared_ptr<Group> make_group(SequenceId id, protocol::GenerateRequest request,
                                    int32_t adapter, GrammarPointer grammar, EventSink sink) const;
  SequenceSpec make_spec(SequenceId id, const protocol::RequestContext& context,
                         std::vector<int32_t> prompt, const std::string& adapter_name,
                         int32_t adapter) const;
  SequenceSpec choice_spec(const Group& group, SequenceId id, int32_t choice) const;
  // Of a group's choice; without one, of the prefill leg of choice 0.
  Generation make_generation(const protocol::GenerateRequest& request,
                             const GrammarPointer& grammar, uint64_t seed, int32_t choice) const;
  std::vector<int32_t> stop_tokens(const protocol::SamplingParams& params) const;
  void add_choice(const std::shared_ptr<Group>& group, SequenceId id, int32_t choice);
  void start_choices(const std::shared_ptr<Group>& group);
  void collect(protocol::StepOutcome& outcome);  // what does not pass through the scheduler
  void deliver_updates();
  void deliver(SequenceId id, Generation& generation, SequenceUpdate& update);
  void deliver_prefill(Generation& generation, SequenceUpdate& update);
  void deliver_embedding(Generation& generation, SequenceUpdate& update);
  void deliver_token(Generation& generation, const protocol::ScoredToken& token);
  void emit_text(Generation& generation, std::optional<protocol::TextEvent> event);
  void emit_prompt(Group& group);
  void end_choice(SequenceId id, Generation& generation, protocol::FinishReason reason,
                  const std::optional<protocol::ScoredToken>& stop_token);
  void end_group(Group& group);
  void drop_group(Group& group);
  // engine_grammar.cc
  Result<GrammarPointer> grammar_of(const protocol::GenerateRequest& request) const;
  std::shared_ptr<GrammarMasks::Mask> start_mask(Generation& generation);
  void jump_forward(SequenceId id, Generation& generation);
  DeviceJob make_job(protocol::StepPlan plan);
  void tell_pages(Generation& generation, const protocol::StepSequence& planned);
  void on_outcome(protocol::StepOutcome outcome, const JobTiming& timing,
                  const IntegrityReport& report);
  std::string request_of(SequenceId id) const;
  void update_stats();

  std::unique_ptr<model::Model> model_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  ops::PageArenaView arena_;
  std::vector<model::PageGroup> page_groups_;
  EngineOptions options_;
  Meters meters_;
  CacheGuard guard_;
  kv::KvManager kv_;
  int32_t context_length_;
  Scheduler scheduler_;
  mutable std::once_flag grammars_once_;
  mutable std::unique_ptr<grammar::GrammarCache> grammars_;  // made with the first grammar
  GrammarMasks masks_;  // outlives the executor, which waits for them
  std::unordered_map<SequenceId, Generation> generations_;
  std::unordered_map<SequenceId, std::shared_ptr<Group>> groups_;
  kv::ReserveQueue reserves_{kv_};
  std::unordered_map<SequenceId, std::function<void(std::optional<Received>)>> reserve_done_;
  std::atomic<SequenceId> next_id_{1};
  uint64_t seen_preemptions_ = 0;
  uint64_t seen_evictions_ = 0;
  uint64_t seen_passed_ = 0;
  double prefill_rate_ = 0;

  mutable std::mutex mutex_;  // inbox_, stop_, stats_
  std::condition_variable wake_;
  std::deque<std::function<void()>> inbox_;
  bool stop_ = false;
  EngineStats stats_;
  TimePoint busy_since_ =
      TimePoint::max();  // the oldest pass out was submitted or became oldest then
  std::unique_ptr<Executor> executor_;
  std::thread thread_;
};

}  // namespace tandem::engine
