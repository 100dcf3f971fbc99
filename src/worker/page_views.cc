#include "worker/page_views.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::worker {

PageViews::PageViews(const ops::cpu::Kernels& kernels, const ops::PageLayout& from,
                     ops::KvScales scales, uint32_t layers)
    : kernels_(kernels), from_(from), scales_(std::move(scales)), layers_(layers) {
  for (const ops::KvDtype dtype : ops::kAllKvDtypes) {
    ops::PageLayout& to = to_[static_cast<size_t>(dtype)];
    to = from;
    to.dtype = dtype;
  }
}

bool PageViews::complete() const {
  return number(ops::kAllKvDtypes[to_.size() - 1], layers_ - 1, layers_) != 0 &&
         std::ranges::all_of(
             to_, [](const ops::PageLayout& to) { return to.layer_bytes() % kAlignment == 0; });
}

uint16_t PageViews::number(ops::KvDtype dtype, uint32_t layer, uint32_t layers) {
  const uint64_t number = 1 + uint64_t{layers} * static_cast<uint64_t>(dtype) + layer;
  return number <= UINT16_MAX && layer < layers ? static_cast<uint16_t>(number) : 0;
}

kv::SourceViews::Shape PageViews::shape(uint16_t view) const {
  if (view == 0 || layers_ == 0 || (view - 1U) / layers_ >= to_.size()) return {};
  const ops::PageLayout& to = to_[(view - 1U) / layers_];
  if (to.dtype == from_.dtype || to.layer_bytes() % kAlignment != 0) return {};
  return {from_.layer_bytes(), to.layer_bytes()};
}

void PageViews::write(uint16_t view, const std::byte* source, std::byte* target) const {
  convert_page_layer(kernels_, scales_, static_cast<int32_t>((view - 1U) % layers_), from_, source,
                     to_[(view - 1U) / layers_], target);
}

void convert_page_layer(const ops::cpu::Kernels& kernels, const ops::KvScales& scales,
                        int32_t layer, const ops::PageLayout& from, const std::byte* source,
                        const ops::PageLayout& to, std::byte* target) {
  const ops::KvScaleView of_layer = scales.of(layer);
  const size_t floats = ops::conversion_scratch_floats(to);
  thread_local std::vector<float> scratch;
  scratch.resize(std::max(scratch.size(), floats));
  ops::convert_layer(kernels, {from, of_layer}, source, {to, of_layer}, target,
                     {scratch.data(), floats});
}

}  // namespace tandem::worker
