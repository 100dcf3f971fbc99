#include "sim/cache_aware.h"

#include <algorithm>
#include <utility>

namespace tandem::sim {

size_t CacheAware::choose(std::span<const uint64_t> chain, int32_t tokens,
                          std::span<const int32_t> running, TimePoint now) {
  if (now - evicted_ >= options_.evict_every) evict(now);
  const auto [least, most] = std::minmax_element(running.begin(), running.end());
  const auto idle = static_cast<size_t>(least - running.begin());
  size_t chosen = idle;
  const bool balanced = *most - *least <= options_.balance_abs ||
                        *most <= options_.balance_rel * static_cast<double>(*least);
  if (balanced) {
    size_t matched = 0;
    const Node* deepest = nullptr;
    for (; matched < chain.size(); ++matched) {
      const auto found = nodes_.find(chain[matched]);
      if (found == nodes_.end()) break;
      deepest = &found->second;
    }
    const double share = static_cast<double>(matched) * block_tokens_ / std::max(tokens, 1);
    if (deepest != nullptr && share > options_.cache_threshold) {
      // Of the workers at the deepest node, the one that had it last.
      chosen = static_cast<size_t>(std::max_element(deepest->begin(), deepest->end()) -
                                   deepest->begin());
    } else {
      chosen =
          static_cast<size_t>(std::min_element(blocks_.begin(), blocks_.end()) - blocks_.begin());
    }
  }
  for (const uint64_t block : chain) {
    Node& node = nodes_.try_emplace(block, blocks_.size(), 0).first->second;
    if (node[chosen] == 0) ++blocks_[chosen];
    node[chosen] = std::max<int64_t>(now.time_since_epoch().count(), 1);
  }
  return chosen;
}

void CacheAware::evict(TimePoint now) {
  evicted_ = now;
  const auto most = static_cast<int64_t>(static_cast<double>(options_.most_characters) /
                                         (options_.characters_per_token * block_tokens_));
  for (size_t worker = 0; worker < blocks_.size(); ++worker) {
    if (blocks_[worker] <= most) continue;
    std::vector<std::pair<int64_t, uint64_t>> ages;
    for (const auto& [block, node] : nodes_) {
      if (node[worker] != 0) ages.emplace_back(node[worker], block);
    }
    std::sort(ages.begin(), ages.end());
    const auto surplus = static_cast<size_t>(blocks_[worker] - most);
    for (size_t i = 0; i < surplus; ++i) nodes_.at(ages[i].second)[worker] = 0;
    blocks_[worker] = most;
  }
  std::erase_if(nodes_, [](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(),
                       [](int64_t at) { return at == 0; });
  });
}

}  // namespace tandem::sim
