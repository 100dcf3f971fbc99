#include "kv/manager/reserve_queue.h"

#include <algorithm>
#include <utility>

namespace tandem::kv {

bool ReserveQueue::abandon(SequenceId id) {
  const auto at = std::ranges::find(waiting_, id, &Waiting::id);
  if (at == waiting_.end()) return false;
  waiting_.erase(at);
  kv_.release(id);
  return true;
}

std::vector<ReserveQueue::Served> ReserveQueue::serve(TimePoint now, int32_t kept_tokens) {
  std::vector<Served> served;
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    auto reservation = kv_.reserve(first.id, first.tokens, first.scope, kept_tokens);
    if (!reservation && now < first.until) break;
    if (!reservation) kv_.release(first.id);
    served.push_back({first.id, std::move(reservation)});
    waiting_.pop_front();
  }
  // Behind the first they only wait; their time passes all the same.
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (now < waiting.until) return false;
    kv_.release(waiting.id);
    served.push_back({waiting.id, std::nullopt});
    return true;
  });
  return served;
}

}  // namespace tandem::kv
