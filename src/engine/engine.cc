#include "engine/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "observe/log.h"

namespace tandem::engine {

using protocol::GenerateRequest;

Engine::Meters::Meters(observe::Metrics& metrics)
    : running(metrics.gauge("tandem_num_requests_running", "Sequences in the running batch.")),
      waiting(metrics.gauge("tandem_num_requests_waiting", "Sequences waiting for memory.")),
      pages_used(
          metrics.gauge("tandem_kv_pages_used", "KV pages in use by sequences or transfers.")),
      pages_cached(
          metrics.gauge("tandem_kv_pages_cached", "KV pages that hold cached blocks nobody uses.")),
      pages_free(metrics.gauge("tandem_kv_pages_free", "KV pages on the free list.")),
      index_bytes(
          metrics.gauge("tandem_kv_index_bytes", "Metadata of the prefix index, in bytes.")),
      held(metrics.gauge("tandem_num_requests_held",
                         "Prefilled sequences waiting for their transfer.")),
      prompt_tokens(
          metrics.counter("tandem_prompt_tokens_total", "Prompt tokens of admitted requests.")),
      cached_tokens(metrics.counter("tandem_prompt_tokens_cached_total",
                                    "Prompt tokens whose KV was reused.")),
      generation_tokens(metrics.counter("tandem_generation_tokens_total", "Generated tokens.")),
      forced_tokens(metrics.counter("tandem_forced_tokens_total",
                                    "Of those, appended because a grammar allowed nothing else.")),
      preemptions(
          metrics.counter("tandem_num_preemptions_total", "Sequences preempted for memory.")),
      evictions(metrics.counter("tandem_kv_evictions_total", "KV pages of cached blocks evicted.")),
      windows_passed(metrics.counter("tandem_kv_window_pages_passed_total",
                                     "KV pages given back because their window had passed.")),
      steps(metrics.counter("tandem_steps_total", "Forward passes.")),
      non_finite(metrics.counter(
          "tandem_non_finite_outputs_total",
          "Requests that failed because the model produced values that are not numbers.")),
      step_seconds(metrics.histogram("tandem_step_seconds", "Duration of a forward pass.",
                                     observe::latency_buckets())),
      ttft_seconds(metrics.histogram("tandem_time_to_first_token_seconds",
                                     "Submission to first token.", observe::latency_buckets())),
      itl_seconds(metrics.histogram("tandem_inter_token_latency_seconds",
                                    "Time between tokens of one sequence.",
                                    observe::latency_buckets())) {}

namespace {

std::vector<int32_t> windows_of(const std::vector<model::PageGroup>& groups) {
  std::vector<int32_t> windows;
  windows.reserve(groups.size());
  for (const auto& group : groups) windows.push_back(group.window);
  return windows;
}

// A pass that is longer than the window takes pages that only its own rows ever see; the kernels
// gain nothing from more rows than this.
EngineOptions fit_to_windows(EngineOptions options, const std::vector<model::PageGroup>& groups) {
  for (const auto& group : groups) {
    if (group.window > 0)
      options.prefill_chunk = std::min(options.prefill_chunk, std::max(group.window, 256));
  }
  return options;
}

// Logits of prompt rows that one pass keeps for their logprobs: at most 64 MiB.
int32_t scored_rows(const model::Model& model) {
  constexpr int64_t kFloats = int64_t{64} << 18;
  return static_cast<int32_t>(std::max<int64_t>(kFloats / std::max(model.config().vocab, 1), 8));
}

// Generations of this start differ from those of any earlier one, so that a stale tag never fits by
// chance.
uint64_t first_generation() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
             std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count())
         << 8;
}

// A planted fault: the first key changes, or the last layer is lost. Not seen by the thread
// sanitizer, since it is a race on purpose: nobody may write final bytes.
[[clang::no_sanitize("thread")]] void spoil_page(const ops::PageArenaView& arena, int32_t page,
                                                 kv::KvFault fault) {
  volatile std::byte* const bytes = arena.page(page);
  const size_t flipped = arena.layout.element_bytes() - 1;
  const std::byte before = bytes[flipped];
  if (fault == kv::KvFault::kFlipBit) bytes[flipped] = before ^ std::byte{0x40};
  if (fault != kv::KvFault::kLostLayer) return;
  for (size_t at = arena.layout.page_bytes() - arena.layout.layer_bytes();
       at < arena.layout.page_bytes(); ++at)
    bytes[at] = std::byte{0};
}

}  // namespace

Engine::Engine(std::unique_ptr<model::Model> model,
               std::shared_ptr<const text::Tokenizer> tokenizer, ops::PageArenaView arena,
               std::function<void(int32_t, uint64_t)> on_allocate, EngineOptions options,
               observe::Metrics& metrics)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      arena_(arena),
      page_groups_(model_->page_groups()),
      options_(fit_to_windows(std::move(options), page_groups_)),
      meters_(metrics),
      guard_(arena, page_groups_, options_.integrity, metrics,
             [this](std::function<void()> work) { post(std::move(work)); }),
      kv_({.page_count = arena.page_count,
           .block_tokens = arena.layout.block_tokens,
           .lineage = options_.lineage,
           .first_generation = first_generation(),
           .windows = windows_of(page_groups_),
           .rows_in_flight = options_.prefill_chunk * options_.max_in_flight,
           .planted = options_.integrity.faults,
           .observer = options_.kv_observer},
          {.on_allocate = std::move(on_allocate),
           .copy =
               [arena](int32_t from, int32_t to) {
                 std::memcpy(arena.page(to), arena.page(from), arena.layout.page_bytes());
               },
           .spoil = [arena](int32_t page, kv::KvFault fault) { spoil_page(arena, page, fault); }},
          &guard_.tracker()),
      context_length_(kv_.demand().longest(arena.page_count, model_->config().context_length)),
      scheduler_(
          SchedulerOptions{.max_batch_rows = model_->max_rows(),
                           .prefill_chunk = options_.prefill_chunk,
                           .max_sequences = std::min(options_.max_sequences, model_->max_rows()),
                           .max_waiting = options_.max_waiting,
                           .max_in_flight = options_.max_in_flight,
                           .context_length = context_length_,
                           .max_scored_rows = scored_rows(*model_),
                           .patience = options_.prompt_patience},
          kv_) {
  guard_.attach(kv_);
  update_stats();
  executor_ = std::make_unique<Executor>(
      *model_, arena_, options_.max_in_flight, guard_.tracker(), guard_.shape(), masks_,
      [this](protocol::StepOutcome outcome, JobTiming timing, IntegrityReport report) {
        post([this, outcome = std::move(outcome), timing, report = std::move(report)]() mutable {
          on_outcome(std::move(outcome), timing, report);
        });
      });
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  executor_.reset();
  guard_.stop();
}

void Engine::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(command));
  }
  wake_.notify_one();
}

void Engine::loop() {
  while (true) {
    std::deque<std::function<void()>> commands;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return stop_ || !inbox_.empty(); };
      if (scheduler_.waiting() > 0 || !reserves_.empty() || guard_.scrubs()) {
        // Deadlines of what waits pass without an event, and so does the scrubber's time.
        wake_.wait_for(lock, std::chrono::milliseconds(50), ready);
      } else {
        wake_.wait(lock, ready);
      }
      if (stop_) return;
      commands.swap(inbox_);
    }
    for (auto& command : commands) command();
    pump();
  }
}

void Engine::pump() {
  while (true) {
    auto plan = scheduler_.next(std::chrono::steady_clock::now());
    deliver_updates();
    if (!plan) break;
    {
      const std::lock_guard lock(mutex_);
      if (busy_since_ == TimePoint::max()) busy_since_ = std::chrono::steady_clock::now();
    }
    executor_->submit(make_job(std::move(*plan)));
  }
  serve_reserves(std::chrono::steady_clock::now());
  guard_.tick(std::chrono::steady_clock::now(), scheduler_.in_flight() == 0);
  update_stats();
}

DeviceJob Engine::make_job(protocol::StepPlan plan) {
  DeviceJob job;
  for (const auto& sequence : plan.sequences) {
    const auto at = generations_.find(sequence.sequence);
    job.states.push_back(at == generations_.end() ? nullptr : at->second.state);
    job.masks.push_back(at == generations_.end() || !sequence.sample ? nullptr
                                                                     : start_mask(at->second));
    if (at == generations_.end() || !at->second.prefill_sink) continue;
    tell_pages(at->second, sequence);
    const int32_t end = sequence.first_position + static_cast<int32_t>(sequence.tokens.size());
    job.layer_done.push_back(
        {sequence.sequence, [sink = at->second.prefill_sink, end](int32_t layer) {
           sink(LayerProgress{layer, end});
         }});
  }
  job.plan = std::move(plan);
  guard_.prepare(job);
  return job;
}

// Before the pass is submitted, so that its pages are known before their layers are final.
void Engine::tell_pages(Generation& generation, const protocol::StepSequence& planned) {
  const auto tags = kv_.tags(planned.sequence).first(planned.pages.size());
  if (generation.pages_told >= tags.size()) return;
  const auto fresh = tags.subspan(generation.pages_told);
  generation.pages_told = tags.size();
  generation.prefill_sink(PrefillPages{{fresh.begin(), fresh.end()}, guard_.digests(fresh)});
}

std::string Engine::request_of(SequenceId id) const {
  const auto at = generations_.find(id);
  if (at == generations_.end() || !at->second.group) return "";
  return at->second.group->request.context.request_id;
}

void Engine::on_outcome(protocol::StepOutcome outcome, const JobTiming& timing,
                        const IntegrityReport& report) {
  meters_.steps.add();
  meters_.step_seconds.observe(to_seconds(timing.forward));
  if (!outcome.error.empty()) observe::log_error("a forward pass failed: {}", outcome.error);
  if (timing.prompt_rows >= 8 && timing.forward > Duration::zero()) {
    const double rate = timing.rows / to_seconds(timing.forward);
    prefill_rate_ = prefill_rate_ == 0 ? rate : 0.8 * prefill_rate_ + 0.2 * rate;
  }
  {
    const std::lock_guard lock(mutex_);
    busy_since_ = std::chrono::steady_clock::now();
  }
  guard_.on_report(report, [this](SequenceId id) { return request_of(id); });
  collect(outcome);
  scheduler_.complete(std::move(outcome));
  deliver_updates();
}

void Engine::abort(SequenceId id) {
  post([this, id] {
    if (const auto group = groups_.find(id); group != groups_.end()) {
      const auto kept = group->second;
      drop_group(*kept);
      return;
    }
    generations_.erase(id);
    if (!scheduler_.finish(id)) scheduler_.release_held(id);
  });
}

void Engine::release_held(SequenceId id) {
  post([this, id] {
    generations_.erase(id);
    scheduler_.release_held(id);
  });
}

SequenceId Engine::reserve(std::vector<int32_t> tokens, KvScope scope, Duration wait,
                           std::function<void(std::optional<Received>)> done) {
  const SequenceId id = next_id_++;
  post([this, id, tokens = std::move(tokens), scope = std::move(scope), wait,
        done = std::move(done)]() mutable {
    const bool fits = !tokens.empty() && static_cast<int64_t>(tokens.size()) < context_length_;
    if (!fits) {
      done(std::nullopt);
      return;
    }
    const TimePoint until = std::chrono::steady_clock::now() + wait;
    reserves_.add({id, std::move(tokens), std::move(scope), until});
    reserve_done_.emplace(id, std::move(done));
    serve_reserves(std::chrono::steady_clock::now());
  });
  return id;
}

void Engine::serve_reserves(TimePoint now) {
  for (auto& served : reserves_.serve(now, scheduler_.next_waiting_tokens())) {
    const auto done = std::move(reserve_done_.extract(served.id).mapped());
    if (!served.reservation) {
      done(std::nullopt);
      continue;
    }
    done(Received{served.id, std::move(served.reservation->first_missing),
                  std::move(served.reservation->pages)});
  }
}

void Engine::abandon_received(SequenceId id, bool may_be_written) {
  post([this, id, may_be_written] {
    if (!reserves_.abandon(id)) {
      kv_.receive_failed(id, may_be_written);
      return;
    }
    reserve_done_.extract(id).mapped()(std::nullopt);
  });
}

void Engine::add_readers(std::vector<PageTag> tags) {
  post([this, tags = std::move(tags)] { kv_.add_readers(tags); });
}

void Engine::drop_readers(std::vector<PageTag> tags) {
  post([this, tags = std::move(tags)] { kv_.drop_readers(tags); });
}

void Engine::update_stats() {
  meters_.running.set(scheduler_.running());
  meters_.waiting.set(scheduler_.waiting());
  meters_.held.set(scheduler_.held());
  meters_.pages_used.set(kv_.used_pages());
  meters_.pages_cached.set(kv_.cached_pages());
  meters_.pages_free.set(kv_.free_pages());
  meters_.index_bytes.set(static_cast<double>(kv_.index_bytes()));
  meters_.preemptions.add(static_cast<double>(
      scheduler_.preemptions() - std::exchange(seen_preemptions_, scheduler_.preemptions())));
  meters_.evictions.add(
      static_cast<double>(kv_.evictions() - std::exchange(seen_evictions_, kv_.evictions())));
  meters_.windows_passed.add(static_cast<double>(
      kv_.windows_passed() - std::exchange(seen_passed_, kv_.windows_passed())));
  const std::lock_guard lock(mutex_);
  if (scheduler_.in_flight() == 0) busy_since_ = TimePoint::max();
  stats_ = EngineStats{.running = scheduler_.running(),
                       .waiting = scheduler_.waiting(),
                       .held = scheduler_.held(),
                       .pages_total = kv_.page_count(),
                       .pages_free = kv_.free_pages(),
                       .pages_cached = kv_.cached_pages(),
                       .pages_used = kv_.used_pages(),
                       .pages_quarantined = kv_.pool().quarantined_count(),
                       .prefill_tokens_per_second = prefill_rate_};
}

int64_t Engine::token_capacity() const {
  const auto length = static_cast<size_t>(context_length_);
  const size_t pages = std::max<size_t>(kv_.demand().peak(length), 1);
  return static_cast<int64_t>(static_cast<size_t>(kv_.page_count()) * length / pages);
}

bool Engine::stalled(Duration limit) const {
  const std::lock_guard lock(mutex_);
  return busy_since_ != TimePoint::max() && std::chrono::steady_clock::now() - busy_since_ > limit;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tandem::engine
