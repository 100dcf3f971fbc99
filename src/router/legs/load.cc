#include "router/legs/load.h"

#include <algorithm>
#include <cassert>

namespace tandem::router {

LoadShare& LoadShare::operator=(LoadShare&& other) noexcept {
  if (this == &other) return *this;
  release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  worker_ = other.worker_;
  load_ = std::exchange(other.load_, Load());
  return *this;
}

void LoadShare::release() {
  if (ledger_ == nullptr) return;
  std::exchange(ledger_, nullptr)->remove(worker_, load_);
  load_ = {};
}

void LoadShare::release_queued() {
  if (ledger_ == nullptr) return;
  ledger_->remove(worker_, Load{0, load_.queued_tokens, 0});
  load_.queued_tokens = 0;
}

LoadShare LoadLedger::take(uint32_t worker, const Load& load) {
  assert(load.running >= 0 && load.queued_tokens >= 0 && load.held_tokens >= 0);
  if (worker >= loads_.size()) loads_.resize(worker + 1);
  Load& total = loads_[worker];
  total.running += load.running;
  total.queued_tokens += load.queued_tokens;
  total.held_tokens += load.held_tokens;
  LoadShare share;
  share.ledger_ = this;
  share.worker_ = worker;
  share.load_ = load;
  return share;
}

void LoadLedger::remove(uint32_t worker, const Load& load) {
  Load& total = loads_[worker];
  total.running -= load.running;
  total.queued_tokens -= load.queued_tokens;
  total.held_tokens -= load.held_tokens;
  assert(total.running >= 0 && total.queued_tokens >= 0 && total.held_tokens >= 0);
}

const Load& LoadLedger::of(uint32_t worker) const {
  static const Load none;
  return worker < loads_.size() ? loads_[worker] : none;
}

bool LoadLedger::idle() const {
  return std::all_of(loads_.begin(), loads_.end(), [](const Load& load) { return load == Load(); });
}

}  // namespace tandem::router
