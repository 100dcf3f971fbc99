// ReportedLoad: a worker's whole load from two sources: what this router has in flight there, which
// it knows at once, and what the worker last reported, which holds other routers' work too but is
// old. Others' share is what the report had beyond ours at that moment; so our own work is never
// counted twice, work sent since the report counts, and nothing becomes negative.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::router {

class ReportedLoad {
 public:
  // The worker reported `theirs` while this router had `ours` there.
  void reported(int64_t theirs, int64_t ours) { others_ = std::max<int64_t>(theirs - ours, 0); }
  void forget() { others_ = 0; }  // the worker is gone or reports no more
  int64_t total(int64_t ours_now) const { return ours_now + others_; }

 private:
  int64_t others_ = 0;
};

}  // namespace tandem::router
