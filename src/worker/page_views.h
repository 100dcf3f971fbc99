// PageViews: this worker's pages as other workers store them, for transports whose sending side
// copies anyway (TCP): each layer of a page is converted into the receiver's form as it leaves, so
// that BF16 pages for an FP8 worker are half the bytes on the way. The bits are those that the
// receiver's own conversion (PageImporter) would have made.
//
// A view's number names the form and the layer of the model, whose static scales it may need:
// 1 + dtype * layers + layer. Both workers count it so; their layers are the same in number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kv/transfer/transport.h"
#include "ops/kv_scales.h"
#include "ops/page_conversion.h"

namespace tandem::worker {

// Thread-safe, and independent of the model and the engine.
class PageViews final : public kv::SourceViews {
 public:
  // `layers` of the model, whose pages lie as `from` says.
  PageViews(const ops::cpu::Kernels& kernels, const ops::PageLayout& from, ops::KvScales scales,
            uint32_t layers);

  // Whether every form of every layer has its view. (Pages of very small heads are no multiple of
  // kAlignment, very deep models have no numbers left.)
  bool complete() const;

  // 0: there is no such view.
  static uint16_t number(ops::KvDtype dtype, uint32_t layer, uint32_t layers);

  Shape shape(uint16_t view) const override;
  void write(uint16_t view, const std::byte* source, std::byte* target) const override;

 private:
  const ops::cpu::Kernels& kernels_;
  const ops::PageLayout from_;
  const ops::KvScales scales_;
  const uint32_t layers_;
  std::array<ops::PageLayout, std::size(ops::kAllKvDtypes)> to_;  // by dtype
};

// Layer `layer` of the model at `source`, stored as `from` says, to `target`, as `to` says.
void convert_page_layer(const ops::cpu::Kernels& kernels, const ops::KvScales& scales,
                        int32_t layer, const ops::PageLayout& from, const std::byte* source,
                        const ops::PageLayout& to, std::byte* target);

}  // namespace tandem::worker
