#include "sim/serving_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tandem::sim {

namespace {

constexpr double kTiny = 1e-9;

}  // namespace

void StepLengths::add(double seconds, double tokens) {
  if (tokens <= 0) return;
  buckets_[static_cast<int32_t>(std::lround(seconds / kUnit))] += tokens;
  tokens_ += tokens;
  seconds_ += seconds * tokens;
}

void StepLengths::add(const StepLengths& other) {
  for (const auto& [bucket, tokens] : other.buckets_) buckets_[bucket] += tokens;
  tokens_ += other.tokens_;
  seconds_ += other.seconds_;
}

double StepLengths::quantile(double share) const {
  double left = share * tokens_;
  for (const auto& [bucket, tokens] : buckets_) {
    left -= tokens;
    if (left <= 0) return bucket * kUnit;
  }
  return 0;
}

ServingWorker::ServingWorker(EventLoop& loop, const EngineSpec& spec, int32_t block_tokens)
    : loop_(loop),
      spec_(spec),
      block_tokens_(block_tokens),
      cache_(static_cast<size_t>(std::max<int64_t>(spec.kv_tokens / block_tokens, 1))),
      at_(loop.now()) {}

double ServingWorker::step_length() const {
  return spec_.step_seconds * (1 + spec_.crowding * std::max(0, running_ - 1));
}

double ServingWorker::prefill_speed() const {
  if (!spec_.shared_device || running_ == 0) return spec_.prefill_rate;
  const double chunk = spec_.chunk_tokens;
  return chunk / (chunk / spec_.prefill_rate + step_length());
}

double ServingWorker::steps_per_second() const {
  if (!spec_.shared_device || computing_ == nullptr) return 1 / step_length();
  return 1 / (spec_.chunk_tokens / spec_.prefill_rate + step_length());
}

// Brings what goes on up to the present.
void ServingWorker::advance() {
  const double seconds = to_seconds(loop_.now() - at_);
  at_ = loop_.now();
  if (seconds <= 0) return;
  if (running_ > 0) {
    const double rate = steps_per_second();
    step_ += rate * seconds;
    steps_.add(1 / rate, rate * seconds * running_);
  }
  if (computing_ != nullptr) {
    remaining_ -= prefill_speed() * seconds;
    busy_ += seconds;
  }
}

void ServingWorker::schedule() {
  const uint64_t generation = ++generation_;
  double next = std::numeric_limits<double>::infinity();
  if (computing_ != nullptr) next = std::max(0.0, remaining_) / prefill_speed();
  for (const auto* const heap : {&first_, &last_}) {
    if (!heap->empty())
      next = std::min(next, std::max(0.0, heap->top().until - step_) / steps_per_second());
  }
  if (std::isinf(next)) return;
  loop_.after(from_seconds(next) + Duration(1), [this, generation] {
    if (generation == generation_) wake();
  });
}

void ServingWorker::wake() {
  advance();
  while (!first_.empty() && first_.top().until <= step_ + kTiny) {
    const JobPointer job = first_.top().job;
    first_.pop();
    if (job->first_token) std::exchange(job->first_token, nullptr)();
  }
  while (!last_.empty() && last_.top().until <= step_ + kTiny) {
    const JobPointer job = last_.top().job;
    last_.pop();
    --running_;
    free_memory(*job);
    cache_.insert(job->chain_after);
    tell_cache_changed();
    if (job->finished) std::exchange(job->finished, nullptr)();
  }
  if (computing_ != nullptr && remaining_ <= kTiny * spec_.prefill_rate) finish_prefill();
  start_prefill();
  join_waiting();
  schedule();
}

// Pins what is held of the prompt and reserves the rest; false when there is no room yet.
bool ServingWorker::take_memory(Job& job, bool all_computed) {
  const size_t held = cache_.match(job.chain);
  const std::span<const uint64_t> prefix(job.chain.data(), held);
  const auto total =
      static_cast<size_t>((job.input + job.output + block_tokens_ - 1) / block_tokens_);
  const size_t more = std::max(total, held) - held;
  // What is larger than the whole memory is let in alone rather than waiting for ever.
  if (!cache_.fits(cache_.unpinned(prefix) + more) && !cache_.fits(cache_.capacity())) return false;
  cache_.pin(prefix);
  cache_.reserve(more);
  job.pinned = held;
  job.reserved = more;
  if (!all_computed) {
    const int64_t tokens = static_cast<int64_t>(held) * block_tokens_;
    job.cached = static_cast<int32_t>(std::min<int64_t>(tokens, job.input - 1));
  }
  tell_cache_changed();
  return true;
}

// The prompt's blocks are computed: they have names now.
void ServingWorker::store_prompt(Job& job) {
  const size_t fresh = job.chain.size() - job.pinned;
  const size_t freed = std::min(fresh, job.reserved);
  cache_.release(freed);
  job.reserved -= freed;
  cache_.insert(job.chain);
  const size_t held = cache_.match(job.chain);
  cache_.pin(std::span<const uint64_t>(job.chain).subspan(job.pinned, held - job.pinned));
  job.pinned = held;
  tell_cache_changed();
}

void ServingWorker::free_memory(Job& job) {
  cache_.unpin(std::span<const uint64_t>(job.chain).first(job.pinned));
  cache_.release(job.reserved);
  job.pinned = 0;
  job.reserved = 0;
}

void ServingWorker::release(const JobPointer& job) {
  advance();
  free_memory(*job);
  start_prefill();
  schedule();
}

void ServingWorker::prefill(const JobPointer& job) {
  advance();
  prompts_.push_back(job);
  start_prefill();
  schedule();
}

void ServingWorker::start_prefill() {
  if (computing_ != nullptr || prompts_.empty() || !take_memory(*prompts_.front(), false)) return;
  computing_ = prompts_.front();
  prompts_.pop_front();
  remaining_ = computing_->input - computing_->cached;
  computed_tokens_ += computing_->input - computing_->cached;
}

void ServingWorker::finish_prefill() {
  const JobPointer job = std::exchange(computing_, nullptr);
  store_prompt(*job);
  if (job->computed) std::exchange(job->computed, nullptr)(job->cached);
}

void ServingWorker::decode(const JobPointer& job) {
  advance();
  joining_.push_back(job);
  join_waiting();
  schedule();
}

void ServingWorker::receive(const JobPointer& job) {
  advance();
  arriving_.push_back(job);
  join_waiting();
  schedule();
}

void ServingWorker::join_waiting() {
  while (!arriving_.empty() && take_memory(*arriving_.front(), true)) {
    store_prompt(*arriving_.front());
    joining_.push_back(arriving_.front());
    arriving_.pop_front();
  }
  while (!joining_.empty() && running_ < spec_.max_running) {
    const JobPointer job = joining_.front();
    joining_.pop_front();
    ++running_;
    first_.push({step_ + 1, order_++, job});
    last_.push({step_ + job->output, order_++, job});
  }
}

void ServingWorker::tell_cache_changed() {
  if (cache_changed) cache_changed();
}

}  // namespace tandem::sim
