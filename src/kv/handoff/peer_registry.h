// PeerRegistry: which connection speaks for which start of which worker (fencing by epoch, DESIGN
// I1).
//
// A worker that restarts is another peer. Its HELLO names the worker (`instance`) and the start
// (`epoch`, which grows). When a newer start says hello, what is left of older ones is fenced: over
// TCP a connection of a process that is long gone can look alive for minutes. An older start is
// refused while a newer one is connected. Only connections that are open are remembered, so a clock
// that was set back locks nobody out for ever. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kv/handoff/send_handoff.h"

namespace tandem::kv {

class PeerRegistry {
 public:
  struct Admission {
    bool accepted = true;
    std::vector<PeerId> fence;  // close these, and treat them as lost, before `peer` is heard
  };
  // `instance` may be empty: such a peer has no other starts.
  Admission on_hello(PeerId peer, const std::string& instance, uint64_t epoch);
  void on_closed(PeerId peer);
  size_t size() const { return peers_.size(); }

 private:
  struct Start {
    std::string instance;
    uint64_t epoch = 0;
  };
  std::map<PeerId, Start> peers_;
};

}  // namespace tandem::kv
