// PageImporter: how one peer's pages become this worker's: which bytes of which page go where, as
// the resharding plan of the two layouts has it (kv/reshard), and byte for byte when both are
// stored the same way or the sender converts (page_views.h), else converted here, one layer of one
// page at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "ops/kv_scales.h"
#include "ops/page_conversion.h"
#include "protocol/handoff_frames.h"

namespace tandem::worker {

// One layer of one page.
struct LayerCut {
  size_t source_offset = 0;
  size_t bytes = 0;   // as they travel
  uint16_t view = 0;  // that they are read through; 0: none
  size_t target_offset = 0;
};

// Thread-safe.
class PageImporter {
 public:
  // `receiver`, `to` and `scales` are this worker's; `sender` said hello and fits
  // (kv::check_compatible). Errors: of the plan, or 502 "handoff_refused" when it needs more than
  // one read for a layer of a page.
  static Result<std::shared_ptr<const PageImporter>> make(const ops::cpu::Kernels& kernels,
                                                          const protocol::HelloFrame& sender,
                                                          const protocol::HelloFrame& receiver,
                                                          const ops::PageLayout& to,
                                                          const ops::KvScales& scales);

  bool converts() const { return from_.dtype != to_.dtype; }
  // Of pages as they arrive.
  const ops::PageLayout& arriving() const { return from_; }
  const LayerCut& cut(uint32_t layer) const { return cuts_[layer]; }

  // Turns layer `layer` of the model, as it arrived, into this worker's form at `target`.
  // Only when converts().
  void convert(int32_t layer, const std::byte* source, std::byte* target) const;

 private:
  PageImporter(const ops::cpu::Kernels& kernels, const ops::PageLayout& from,
               const ops::PageLayout& to, const ops::KvScales& scales, std::vector<LayerCut> cuts)
      : kernels_(&kernels), from_(from), to_(to), scales_(&scales), cuts_(std::move(cuts)) {}

  const ops::cpu::Kernels* kernels_;
  ops::PageLayout from_;
  ops::PageLayout to_;
  const ops::KvScales* scales_;
  std::vector<LayerCut> cuts_;  // by layer of the model
};

}  // namespace tandem::worker
