// Load accounting by ownership: a LoadShare is what one leg weighs on one worker, from dispatch
// until it is dropped. What was added is exactly what is removed, so a worker's load is never
// negative and is zero when nothing runs. One thread (the router's reactor). A Ledger must outlive
// its shares.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tandem::router {

struct Load {
  int32_t running = 0;        // legs in flight
  int64_t queued_tokens = 0;  // prompt tokens given and not yet computed
  int64_t held_tokens = 0;    // context of the legs in flight
  bool operator==(const Load&) const = default;
};

class LoadLedger;

class LoadShare {
 public:
  LoadShare() = default;
  LoadShare(LoadShare&& other) noexcept { *this = std::move(other); }
  LoadShare& operator=(LoadShare&& other) noexcept;
  ~LoadShare() { release(); }

  void release();
  void release_queued();  // the prompt is computed; the rest of the leg goes on
  bool held() const { return ledger_ != nullptr; }

 private:
  friend class LoadLedger;
  LoadLedger* ledger_ = nullptr;
  uint32_t worker_ = 0;
  uint32_t rank_ = 0;
  Load load_;
};

class LoadLedger {
 public:
  LoadShare take(uint32_t worker, const Load& load, uint32_t rank = 0);
  const Load& of(uint32_t worker) const;                 // of all its ranks
  const Load& of(uint32_t worker, uint32_t rank) const;  // of one data-parallel rank
  bool idle() const;                                     // every worker's load is exactly zero

 private:
  friend class LoadShare;
  struct OfWorker {
    Load total;
    std::vector<Load> ranks;
  };
  void remove(uint32_t worker, uint32_t rank, const Load& load);
  std::vector<OfWorker> loads_;
};

}  // namespace tandem::router
