#include "worker/page_importer.h"

#include <algorithm>
#include <vector>

namespace tandem::worker {

PageImporter::PageImporter(const ops::cpu::Kernels& kernels, const protocol::HelloFrame& sender,
                           const ops::PageLayout& to, const ops::KvScales& scales)
    : kernels_(&kernels), from_(to), to_(to), scales_(&scales) {
  from_.dtype = static_cast<ops::KvDtype>(sender.kv_dtype);
}

void PageImporter::convert(int32_t layer, const std::byte* source, std::byte* target) const {
  const ops::KvScaleView scales = scales_->of(layer);
  thread_local std::vector<float> scratch;
  scratch.resize(std::max(scratch.size(), ops::conversion_scratch_floats(to_)));
  ops::convert_layer(
      *kernels_, {from_, scales}, source, {to_, scales}, target,
      {scratch.data(), ops::conversion_scratch_floats(to_)});
}

}  // namespace tandem::worker
