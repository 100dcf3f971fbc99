#include "worker/page_importer.h"

namespace tandem::worker {

PageImporter::PageImporter(const ops::cpu::Kernels& kernels, const protocol::HelloFrame& sender,
                           const ops::PageLayout& to, const ops::KvScales& scales)
    : kernels_(&kernels), from_(to), to_(to), scales_(&scales) {
  from_.dtype = static_cast<ops::KvDtype>(sender.kv_dtype);
  if (!converts()) return;
  staging_ = ops::allocate_aligned(source_layer_bytes());
  scratch_ = ops::allocate_aligned(ops::conversion_scratch_floats(to_) * sizeof(float));
}

void PageImporter::convert(int32_t layer, const std::byte* source, std::byte* target) {
  const ops::KvScaleView scales = scales_->of(layer);
  ops::convert_layer(
      *kernels_, {from_, scales}, source, {to_, scales}, target,
      {reinterpret_cast<float*>(scratch_.get()), ops::conversion_scratch_floats(to_)});
}

}  // namespace tandem::worker
