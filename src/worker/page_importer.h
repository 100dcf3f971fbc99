// PageImporter: how one peer's pages become this worker's: byte for byte when both are stored the
// same way, else converted, one layer of one page at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/kv_scales.h"
#include "ops/page_conversion.h"
#include "protocol/handoff_frames.h"

namespace tandem::worker {

// Thread-safe.
class PageImporter {
 public:
  // `to` and `scales` are this worker's; `sender` said hello and fits (kv::check_compatible).
  PageImporter(const ops::cpu::Kernels& kernels, const protocol::HelloFrame& sender,
               const ops::PageLayout& to, const ops::KvScales& scales);

  bool converts() const { return from_.dtype != to_.dtype; }
  const ops::PageLayout& source_layout() const { return from_; }
  // Of the sender's pages.
  size_t source_page_bytes() const { return from_.page_bytes(); }
  size_t source_layer_bytes() const { return from_.layer_bytes(); }
  size_t source_offset(int32_t slot) const { return from_.k_offset(slot, 0); }
  size_t target_offset(int32_t slot) const { return to_.k_offset(slot, 0); }

  // Turns layer `layer` of the model, as the sender stores it, into this worker's form at `target`.
  // Only when converts().
  void convert(int32_t layer, const std::byte* source, std::byte* target) const;

 private:
  const ops::cpu::Kernels* kernels_;
  ops::PageLayout from_;
  ops::PageLayout to_;
  const ops::KvScales* scales_;
};

}  // namespace tandem::worker
