#include "mock/engine_model.h"

#include <algorithm>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace tandem::mock {

namespace {

net::asio::awaitable<void> pause(net::Reactor& reactor, Duration duration) {
  if (duration <= Duration::zero()) co_return;
  net::asio::steady_timer timer(reactor.context(), duration);
  (void)co_await timer.async_wait(net::asio::as_tuple(net::asio::use_awaitable));
}

}  // namespace

// FNV-1a over the tokens, from the parent's hash on.
uint64_t chain_hash(uint64_t parent, std::span<const uint32_t> tokens) {
  uint64_t hash = parent ^ 0xcbf29ce484222325U;
  for (const uint32_t token : tokens) hash = (hash ^ token) * 0x100000001b3U;
  return hash ^ (hash >> 29);
}

// Leaves before what they hang on, so that they are also evicted before it.
void BlockCache::touch(std::span<const uint64_t> chain) {
  for (size_t i = chain.size(); i-- > 0;) {
    const auto at = blocks_.find(chain[i]);
    if (at != blocks_.end()) order_.splice(order_.end(), order_, at->second);
  }
}

int64_t BlockCache::match(std::span<const uint32_t> tokens) {
  std::vector<uint64_t> chain;
  size_t begin = 0;
  while (begin + kBlockTokens < tokens.size()) {
    const uint64_t next =
        chain_hash(chain.empty() ? 0 : chain.back(), tokens.subspan(begin, kBlockTokens));
    if (!blocks_.contains(next)) break;
    chain.push_back(next);
    begin += kBlockTokens;
  }
  touch(chain);
  return static_cast<int64_t>(begin);
}

void BlockCache::insert(std::span<const uint32_t> tokens) {
  std::vector<uint64_t> chain;
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    const auto block = tokens.subspan(begin, kBlockTokens);
    const uint64_t hash = chain_hash(chain.empty() ? 0 : chain.back(), block);
    const std::optional<uint64_t> parent =
        chain.empty() ? std::nullopt : std::optional<uint64_t>(chain.back());
    chain.push_back(hash);
    if (blocks_.contains(hash)) continue;
    if (blocks_.size() >= max_blocks_) {
      if (order_.empty()) return;
      if (voice_ != nullptr) voice_->removed(order_.front());
      blocks_.erase(order_.front());
      order_.pop_front();
    }
    blocks_[hash] = order_.insert(order_.end(), hash);
    if (voice_ != nullptr) voice_->stored(hash, parent, block);
  }
  touch(chain);
}

void BlockCache::clear() {
  order_.clear();
  blocks_.clear();
  if (voice_ != nullptr) voice_->cleared();
}

EngineModel::EngineModel(net::Reactor& reactor, const Speed& speed, size_t cache_tokens)
    : reactor_(reactor), speed_(speed), cache_(cache_tokens), room_(reactor) {}

void EngineModel::cancel(Job& job) {
  job.cancelled = true;
  job.changed.notify();
}

net::asio::awaitable<std::optional<int64_t>> EngineModel::prefill(
    std::shared_ptr<Job> job, std::span<const uint32_t> tokens) {
  if (speed_.prefill_rate <= 0) {
    const int64_t cached = cache_.match(tokens);
    cache_.insert(tokens);
    co_return cached;
  }
  job->tokens = tokens;
  prompts_.push_back(job);
  if (!std::exchange(computing_, true)) reactor_.spawn(prefill_loop(shared_from_this()));
  while (!job->computed && !job->cancelled) co_await job->changed.wait();
  if (!job->cancelled) co_return job->cached;
  std::erase(prompts_, job);
  co_return std::nullopt;
}

// As in real engines, what is cached is looked up when a prompt's turn has come, not when it
// arrived.
net::asio::awaitable<void> EngineModel::prefill_loop(std::shared_ptr<EngineModel> self) {
  while (!prompts_.empty()) {
    const std::shared_ptr<Job> job = prompts_.front();
    prompts_.pop_front();
    if (job->cancelled) continue;
    job->cached = cache_.match(job->tokens);
    const auto uncached =
        static_cast<double>(job->tokens.size()) - static_cast<double>(job->cached);
    const auto seconds = std::chrono::duration<double>(uncached / speed_.prefill_rate);
    co_await pause(reactor_, std::chrono::duration_cast<Duration>(seconds));
    if (job->cancelled) continue;
    cache_.insert(job->tokens);
    job->computed = true;
    job->changed.notify();
  }
  self->computing_ = false;
}

net::asio::awaitable<bool> EngineModel::join(std::shared_ptr<Job> job) {
  while (running_ >= speed_.max_running && !job->cancelled)
    co_await room_.wait_for(std::chrono::seconds(1));
  if (job->cancelled) co_return false;
  ++running_;
  co_return true;
}

void EngineModel::leave() {
  --running_;
  room_.notify();
}

net::asio::awaitable<bool> EngineModel::step(std::shared_ptr<Job> job) {
  if (speed_.step <= Duration::zero()) {
    ++job->steps;
    co_return !job->cancelled;
  }
  const uint64_t before = job->steps;
  stepping_.push_back(job);
  if (!std::exchange(ticking_, true)) reactor_.spawn(step_loop(shared_from_this()));
  while (job->steps == before && !job->cancelled) co_await job->changed.wait();
  co_return !job->cancelled;
}

net::asio::awaitable<void> EngineModel::step_loop(std::shared_ptr<EngineModel> self) {
  while (!stepping_.empty()) {
    const double others = std::max(0, running_ - 1);
    const auto length = std::chrono::duration<double, Duration::period>(
        static_cast<double>(speed_.step.count()) * (1 + speed_.crowding * others));
    co_await pause(reactor_, std::chrono::duration_cast<Duration>(length));
    for (const auto& job : std::exchange(stepping_, {})) {
      ++job->steps;
      job->changed.notify();
    }
    // Those that go on step again before the next one begins.
    co_await pause(reactor_, Duration(1));
  }
  self->ticking_ = false;
}

}  // namespace tandem::mock
