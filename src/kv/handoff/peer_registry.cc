#include "kv/handoff/peer_registry.h"

#include <algorithm>

namespace tandem::kv {

PeerRegistry::Admission PeerRegistry::on_hello(PeerId peer, const std::string& instance,
                                               uint64_t epoch) {
  Admission out;
  if (!instance.empty()) {
    out.accepted = std::ranges::none_of(peers_, [&](const auto& other) {
      return other.second.instance == instance && other.second.epoch > epoch;
    });
    if (!out.accepted) return out;
    std::erase_if(peers_, [&](const auto& other) {
      const bool older = other.second.instance == instance && other.second.epoch < epoch;
      if (older) out.fence.push_back(other.first);
      return older;
    });
  }
  peers_[peer] = Start{instance, epoch};
  return out;
}

void PeerRegistry::on_closed(PeerId peer) { peers_.erase(peer); }

}  // namespace tandem::kv
