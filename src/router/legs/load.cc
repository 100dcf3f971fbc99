#include "router/legs/load.h"

#include <algorithm>
#include <cassert>

namespace tandem::router {

namespace {

const Load kNone;

void add(Load& total, const Load& load) {
  total.running += load.running;
  total.queued_tokens += load.queued_tokens;
  total.held_tokens += load.held_tokens;
}

void subtract(Load& total, const Load& load) {
  total.running -= load.running;
  total.queued_tokens -= load.queued_tokens;
  total.held_tokens -= load.held_tokens;
  assert(total.running >= 0 && total.queued_tokens >= 0 && total.held_tokens >= 0);
}

}  // namespace

LoadShare& LoadShare::operator=(LoadShare&& other) noexcept {
  if (this == &other) return *this;
  release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  worker_ = other.worker_;
  rank_ = other.rank_;
  load_ = std::exchange(other.load_, Load());
  return *this;
}

void LoadShare::release() {
  if (ledger_ == nullptr) return;
  std::exchange(ledger_, nullptr)->remove(worker_, rank_, load_);
  load_ = {};
}

void LoadShare::release_queued() {
  if (ledger_ == nullptr) return;
  ledger_->remove(worker_, rank_, Load{0, load_.queued_tokens, 0});
  load_.queued_tokens = 0;
}

LoadShare LoadLedger::take(uint32_t worker, const Load& load, uint32_t rank) {
  assert(load.running >= 0 && load.queued_tokens >= 0 && load.held_tokens >= 0);
  if (worker >= loads_.size()) loads_.resize(worker + 1);
  OfWorker& all = loads_[worker];
  if (rank >= all.ranks.size()) all.ranks.resize(rank + 1);
  add(all.total, load);
  add(all.ranks[rank], load);
  LoadShare share;
  share.ledger_ = this;
  share.worker_ = worker;
  share.rank_ = rank;
  share.load_ = load;
  return share;
}

void LoadLedger::remove(uint32_t worker, uint32_t rank, const Load& load) {
  subtract(loads_[worker].total, load);
  subtract(loads_[worker].ranks[rank], load);
}

const Load& LoadLedger::of(uint32_t worker) const {
  return worker < loads_.size() ? loads_[worker].total : kNone;
}

const Load& LoadLedger::of(uint32_t worker, uint32_t rank) const {
  if (worker >= loads_.size() || rank >= loads_[worker].ranks.size()) return kNone;
  return loads_[worker].ranks[rank];
}

bool LoadLedger::idle() const {
  return std::all_of(loads_.begin(), loads_.end(), [](const OfWorker& all) {
    return all.total == kNone && std::ranges::count(all.ranks, kNone) == std::ssize(all.ranks);
  });
}

}  // namespace tandem::router
