#include "router/policy/prefix_map.h"

#include <algorithm>

namespace tandem::router {

void PrefixMap::unlink(uint32_t at) {
  Node& node = nodes_[at];
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
}

void PrefixMap::touch(uint32_t at) {
  if (newest_ == at) return;
  unlink(at);
  nodes_[at].older = newest_;
  nodes_[at].newer = kNone;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
  newest_ = at;
}

void PrefixMap::remove(uint32_t at) {
  unlink(at);
  bytes_ -= kNodeBytes + nodes_[at].workers.size() * sizeof(WorkerId);
  index_.erase(nodes_[at].id);
  nodes_[at].workers = {};
  free_.push_back(at);
}

void PrefixMap::trim() {
  while (bytes_ > max_bytes_ && oldest_ != kNone) remove(oldest_);
}

void PrefixMap::insert(std::span<const protocol::ContentId> blocks, WorkerId worker) {
  // Last block first, so that a chain is evicted from its end: a prefix outlives what hangs on it.
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto [place, fresh] = index_.try_emplace(blocks[i], 0);
    if (fresh) {
      uint32_t at;
      if (free_.empty()) {
        at = static_cast<uint32_t>(nodes_.size());
        nodes_.emplace_back();
      } else {
        at = free_.back();
        free_.pop_back();
      }
      place->second = at;
      nodes_[at] = {blocks[i], {}, newest_, kNone};
      (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
      newest_ = at;
      bytes_ += kNodeBytes;
    } else {
      touch(place->second);
    }
    auto& workers = nodes_[place->second].workers;
    if (std::find(workers.begin(), workers.end(), worker) != workers.end()) continue;
    workers.push_back(worker);
    bytes_ += sizeof(WorkerId);
  }
  trim();
}

std::vector<int32_t> PrefixMap::match(std::span<const protocol::ContentId> blocks, size_t workers) {
  std::vector<int32_t> held(workers, 0);
  std::vector<uint32_t> path;
  for (const protocol::ContentId& block : blocks) {
    const auto found = index_.find(block);
    if (found == index_.end()) break;
    bool advanced = false;
    for (const WorkerId worker : nodes_[found->second].workers) {
      if (worker >= workers || held[worker] != static_cast<int32_t>(path.size())) continue;
      ++held[worker];
      advanced = true;
    }
    if (!advanced) break;
    path.push_back(found->second);
  }
  for (size_t i = path.size(); i-- > 0;) touch(path[i]);
  return held;
}

void PrefixMap::clear_worker(WorkerId worker) {
  for (uint32_t at = oldest_; at != kNone;) {
    const uint32_t next = nodes_[at].newer;
    auto& workers = nodes_[at].workers;
    const auto found = std::find(workers.begin(), workers.end(), worker);
    if (found != workers.end()) {
      workers.erase(found);
      bytes_ -= sizeof(WorkerId);
    }
    if (workers.empty()) remove(at);
    at = next;
  }
}

}  // namespace tandem::router
