#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sample/logprobs.h"

namespace tandem::engine {

using protocol::StepOutcome;

Executor::Executor(model::Model& model, ops::PageArenaView pages, int max_in_flight,
                   const kv::IntegrityTracker& tracker, kv::DigestShape digest_shape,
                   GrammarMasks& masks, Done done)
    : model_(model),
      pages_(pages),
      tracker_(tracker),
      digest_shape_(std::move(digest_shape)),
      masks_(masks),
      done_(std::move(done)),
      max_in_flight_(static_cast<size_t>(max_in_flight)),
      thread_([this] { loop(); }) {}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Executor::submit(DeviceJob job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void Executor::loop() {
  model_.bind_caller();
  while (true) {
    DeviceJob job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    JobTiming timing;
    IntegrityReport report;
    StepOutcome outcome = run(job, timing, report);
    done_(std::move(outcome), timing, std::move(report));
  }
}

bool Executor::resolve(protocol::StepPlan& plan) const {
  for (auto& sequence : plan.sequences) {
    if (sequence.tokens.back() != protocol::kPendingToken) continue;
    bool found = false;
    for (const auto& sampled : recent_) {
      const auto at = std::ranges::find(sampled, sequence.sequence, &Known::sequence);
      if (at == sampled.end()) continue;
      sequence.tokens.back() = at->token;
      found = true;
      break;
    }
    if (!found) return false;
  }
  return true;
}

StepOutcome Executor::run(DeviceJob& job, JobTiming& timing, IntegrityReport& report) {
  StepOutcome outcome;
  outcome.step = job.plan.step;
  if (tracker_.level() != kv::IntegrityLevel::kOff) {
    const auto start = std::chrono::steady_clock::now();
    check(job, report, outcome);
    timing.integrity = std::chrono::steady_clock::now() - start;
    if (job.plan.sequences.empty()) return outcome;
  }
  if (!resolve(job.plan)) {
    outcome.error = "A pass was planned on a token that no earlier pass samples.";
    return outcome;
  }
  gather(job, timing);
  ops::ForwardBatch batch;
  batch.tokens = tokens_;
  batch.sequences = rows_;
  batch.logit_rows = logit_rows_;
  batch.hidden_rows = hidden_rows_;
  batch.hidden_out = hidden_;
  if (!job.layer_done.empty()) {
    batch.layer_done = [&](int32_t layer) {
      for (const auto& done : job.layer_done) done.call(layer);
    };
  }
  const size_t logits = logit_rows_.size() * static_cast<size_t>(model_.config().vocab);
  if (logits_.size() < logits) logits_.resize(logits);
  const auto start = std::chrono::steady_clock::now();
  const auto passed = model_.forward(batch, pages_, std::span(logits_).first(logits));
  timing.forward = std::chrono::steady_clock::now() - start;
  if (!passed) {
    outcome.error = passed.error().message;
    return outcome;
  }
  if (tracker_.level() == kv::IntegrityLevel::kFull) {
    const auto digesting = std::chrono::steady_clock::now();
    digest_completed(job, report);
    timing.integrity += std::chrono::steady_clock::now() - digesting;
  }
  read_logits(job, outcome);
  if (!hidden_rows_.empty()) read_hidden(job, outcome);
  // The oldest pass's list is used again.
  if (recent_.size() < max_in_flight_) recent_.emplace_back();
  std::ranges::rotate(recent_, recent_.end() - 1);
  std::vector<Known>& known = recent_.front();
  known.clear();
  for (const auto& sampled : outcome.sampled) known.push_back({sampled.sequence, sampled.token});
  return outcome;
}

// The rows of a pass, and which of them something is read off: the last one where a token is
// sampled, those before scored tokens, those of an embedding.
void Executor::gather(const DeviceJob& job, JobTiming& timing) {
  tokens_.clear();
  rows_.clear();
  logit_rows_.clear();
  hidden_rows_.clear();
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const protocol::StepSequence& sequence = job.plan.sequences[i];
    ops::SequenceRows out;
    out.first_row = static_cast<int32_t>(tokens_.size());
    out.row_count = static_cast<int32_t>(sequence.tokens.size());
    out.first_position = sequence.first_position;
    out.pages = sequence.pages;
    out.adapter = sequence.adapter;
    out.prompt = sequence.prompt;
    tokens_.insert(tokens_.end(), sequence.tokens.begin(), sequence.tokens.end());
    timing.prompt_rows += out.row_count - 1;
    rows_.push_back(out);
    if (job.states[i] == nullptr) continue;
    for (int32_t row = 0; row < static_cast<int32_t>(sequence.targets.size()); ++row)
      logit_rows_.push_back(out.first_row + row);
    if (sequence.sample) logit_rows_.push_back(out.first_row + out.row_count - 1);
    if (!sequence.pool) continue;
    const PoolState& pool = job.states[i]->pool;
    const bool all = pool.pooling == protocol::Pooling::kMean;
    for (int32_t row = 0; row < out.row_count; ++row) {
      if (all || out.first_position + row == pool.rows - 1)
        hidden_rows_.push_back(out.first_row + row);
    }
  }
  timing.rows = static_cast<int32_t>(tokens_.size());
  hidden_.resize(hidden_rows_.size() * static_cast<size_t>(model_.config().hidden));
}

std::span<float> Executor::logits_of(size_t row) {
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  return std::span(logits_).subspan(row * vocab, vocab);
}

void Executor::read_logits(DeviceJob& job, StepOutcome& outcome) {
  size_t row = 0;
  outcome.sampled.reserve(job.plan.sequences.size());
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const protocol::StepSequence& sequence = job.plan.sequences[i];
    SequenceState* state = job.states[i].get();
    if (state == nullptr) {
      if (sequence.sample) outcome.sampled.push_back({.sequence = sequence.sequence});
      continue;
    }
    state->sampler.note(sequence.first_position, sequence.tokens);
    protocol::SampledToken out{.sequence = sequence.sequence};
    out.failed = !score(sequence, *state, row, outcome);
    row += sequence.targets.size();
    if (sequence.sample) {
      const auto position = sequence.first_position + static_cast<int64_t>(sequence.tokens.size());
      std::span<const uint64_t> allowed;
      if (const auto& mask = job.masks[i]) {
        masks_.wait(*mask);
        out.failed = out.failed || !mask->status;
        allowed = mask->tokens.words();
      }
      auto sampled = state->sampler.sample(logits_of(row++), position, scratch_, allowed);
      if (sampled) {
        out.token = sampled->token;
        out.logprob = sampled->logprob;
        out.top = std::move(sampled->top);
      } else {
        out.failed = true;
      }
    }
    // A sequence that failed ends when this is seen; until then its token must only be harmless.
    if (sequence.sample || out.failed) outcome.sampled.push_back(std::move(out));
  }
}

bool Executor::score(const protocol::StepSequence& sequence, const SequenceState& state, size_t row,
                     StepOutcome& outcome) {
  if (sequence.targets.empty()) return true;
  protocol::PromptScores scores{sequence.sequence, sequence.first_position + 1, {}};
  for (const int32_t token : sequence.targets) {
    const auto distribution = sample::Distribution::of(logits_of(row++));
    if (!distribution) return false;
    protocol::ScoredToken& scored = scores.tokens.emplace_back();
    scored.token = token;
    scored.logprob = distribution->logprob(token);
    distribution->top(state.prompt_logprobs, scored.top);
  }
  outcome.scores.push_back(std::move(scores));
  return true;
}

void Executor::read_hidden(DeviceJob& job, StepOutcome& outcome) {
  const auto width = static_cast<size_t>(model_.config().hidden);
  size_t at = 0;
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const protocol::StepSequence& sequence = job.plan.sequences[i];
    if (job.states[i] == nullptr || !sequence.pool) continue;
    PoolState& state = job.states[i]->pool;
    if (sequence.first_position == 0 || state.pooling == protocol::Pooling::kLast)
      state.sum.assign(width, 0.0);
    const int32_t end = rows_[i].first_row + rows_[i].row_count;
    for (; at < hidden_rows_.size() && hidden_rows_[at] < end; ++at) {
      for (size_t k = 0; k < width; ++k)
        state.sum[k] += static_cast<double>(hidden_[at * width + k]);
    }
    if (sequence.first_position + rows_[i].row_count < state.rows) continue;
    // L2 norm 1, as sentence-transformers and vLLM answer. The mean's divisor cancels.
    double squares = 0;
    for (const double value : state.sum) squares += value * value;
    const double norm = std::sqrt(squares);
    if (!std::isfinite(norm)) {
      outcome.sampled.push_back({.sequence = sequence.sequence, .failed = true});
      continue;
    }
    protocol::PooledRows& pooled = outcome.pooled.emplace_back();
    pooled.sequence = sequence.sequence;
    pooled.values.reserve(width);
    for (const double value : state.sum)
      pooled.values.push_back(static_cast<float>(norm > 0 ? value / norm : 0.0));
  }
}

}  // namespace tandem::engine
