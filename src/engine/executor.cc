#include "engine/executor.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

using protocol::StepOutcome;

Executor::Executor(model::Model& model, ops::PageArenaView pages, int max_in_flight,
                   std::function<void(StepOutcome, JobTiming)> done)
    : model_(model),
      pages_(pages),
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
    StepOutcome outcome = run(job, timing);
    done_(std::move(outcome), timing);
  }
}

bool Executor::resolve(protocol::StepPlan& plan) const {
  for (auto& sequence : plan.sequences) {
    if (sequence.tokens.back() != protocol::kPendingToken) continue;
    bool found = false;
    for (const auto& sampled : recent_) {
      const auto at =
          std::ranges::find(sampled, sequence.sequence, &protocol::SampledToken::sequence);
      if (at == sampled.end()) continue;
      // A sequence whose logits failed ends when that outcome is seen; its row here must only be
      // harmless.
      sequence.tokens.back() = at->failed ? 0 : at->token;
      found = true;
      break;
    }
    if (!found) return false;
  }
  return true;
}

StepOutcome Executor::run(DeviceJob& job, JobTiming& timing) {
  StepOutcome outcome;
  outcome.step = job.plan.step;
  if (!resolve(job.plan)) {
    outcome.error = "A pass was planned on a token that no earlier pass samples.";
    return outcome;
  }
  std::vector<int32_t> tokens;
  std::vector<ops::SequenceRows> rows;
  std::vector<int32_t> logit_rows;
  for (const auto& sequence : job.plan.sequences) {
    ops::SequenceRows out;
    out.first_row = static_cast<int32_t>(tokens.size());
    out.row_count = static_cast<int32_t>(sequence.tokens.size());
    out.first_position = sequence.first_position;
    out.pages = sequence.pages;
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    if (sequence.sample) logit_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    timing.prompt_rows += out.row_count - 1;
    rows.push_back(out);
  }
  timing.rows = static_cast<int32_t>(tokens.size());
  const auto vocab = static_cast<size_t>(model_.config().vocab);
  if (logits_.size() < logit_rows.size() * vocab) logits_.resize(logit_rows.size() * vocab);
  ops::ForwardBatch batch;
  batch.tokens = tokens;
  batch.sequences = rows;
  batch.logit_rows = logit_rows;
  if (!job.layer_done.empty()) {
    batch.layer_done = [&](int32_t layer) {
      for (const auto& callback : job.layer_done) callback(layer);
    };
  }
  const auto start = std::chrono::steady_clock::now();
  const auto passed =
      model_.forward(batch, pages_, std::span(logits_).first(logit_rows.size() * vocab));
  timing.forward = std::chrono::steady_clock::now() - start;
  if (!passed) {
    outcome.error = passed.error().message;
    return outcome;
  }
  size_t row = 0;
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const auto& sequence = job.plan.sequences[i];
    if (!sequence.sample) continue;
    const auto position = sequence.first_position + static_cast<int64_t>(sequence.tokens.size());
    const SequenceSampling& sampling = *job.sampling[i];
    const auto sampled = sample::sample(std::span(logits_).subspan(row * vocab, vocab),
                                        sampling.filters, sampling.seed,
                                        /*choice=*/0, position);
    ++row;
    protocol::SampledToken token{sequence.sequence, 0, 0, !sampled};
    if (sampled) {
      token.token = sampled->token;
      token.logprob = sampled->logprob;
    }
    outcome.sampled.push_back(token);
  }
  recent_.push_front(outcome.sampled);
  if (recent_.size() > max_in_flight_) recent_.pop_back();
  return outcome;
}

}  // namespace tandem::engine
