#include "worker/page_importer.h"

#include <string>
#include <utility>

#include "kv/reshard/coverage.h"
#include "kv/reshard/reshard_plan.h"
#include "worker/page_views.h"

namespace tandem::worker {

namespace {

// Where a worker that said hello keeps its KV, pages as `layout` has them.
kv::KvPlace place_of(const protocol::HelloFrame& hello, const ops::PageLayout& layout) {
  kv::KvPlace place;
  place.layout.tensor_ranks = static_cast<int32_t>(hello.tensor_ranks);
  place.layout.data_ranks = static_cast<int32_t>(hello.data_ranks);
  place.layout.stages = hello.stages;
  for (size_t i = 0; i + 1 < hello.layer_places.size(); i += 2)
    place.layout.pages.push_back({hello.layer_places[i], hello.layer_places[i + 1]});
  place.layout.block_tokens = layout.block_tokens;
  place.layout.layout_id = layout.layout_id;
  place.layout.format = {
      static_cast<uint32_t>(layout.dtype), static_cast<int32_t>(layout.element_bytes()),
      ops::has_inline_scales(layout.dtype) ? static_cast<int32_t>(sizeof(float)) : 0};
  return place;
}

// One read for each layer of each page.
Result<std::vector<LayerCut>> layer_cuts(const kv::ReshardPlan& plan, uint32_t layers,
                                         const ops::PageLayout& to) {
  std::vector<LayerCut> cuts;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const auto pages = plan.pages(0, 0, static_cast<int32_t>(layer), {0, to.block_tokens});
    const bool one_read = pages.size() == 1 && pages[0].copy->runs.size() == 1 &&
                          pages[0].copy->runs[0].count == 1 &&
                          pages[0].copy->dest_bytes() == to.layer_bytes();  // all of its heads
    if (!one_read)
      return make_error(502, "handoff_refused",
                        "Layer " + std::to_string(layer) +
                            " of a page cannot be taken from the other worker in one read.");
    const kv::CopyRun& run = pages[0].copy->runs[0];
    cuts.push_back({run.source_offset + pages[0].source_shift, run.source_bytes, 0,
                    run.dest_offset + pages[0].dest_shift});
  }
  return cuts;
}

}  // namespace

Result<std::shared_ptr<const PageImporter>> PageImporter::make(const ops::cpu::Kernels& kernels,
                                                               const protocol::HelloFrame& sender,
                                                               const protocol::HelloFrame& receiver,
                                                               const ops::PageLayout& to,
                                                               const ops::KvScales& scales) {
  ops::PageLayout from = to;
  from.dtype = static_cast<ops::KvDtype>(sender.kv_dtype);
  const std::vector<kv::LayerShape> model(receiver.layers,
                                          {false, to.kv_heads, to.head_dim, to.head_dim});
  const kv::KvPlace source = place_of(sender, from);
  const kv::KvPlace dest = place_of(receiver, to);
  TANDEM_TRY(plan, kv::ReshardPlan::make(model, source, dest));
  TANDEM_CHECK(kv::prove_coverage(model, source, dest, plan.copies()));
  TANDEM_TRY(cuts, layer_cuts(plan, receiver.layers, to));
  if (sender.converted) {
    from = to;
    for (uint32_t layer = 0; layer < receiver.layers; ++layer) {
      cuts[layer].bytes = to.layer_bytes();
      cuts[layer].view = PageViews::number(to.dtype, layer, receiver.layers);
      if (cuts[layer].view == 0)
        return make_error(502, "handoff_refused", "The sender offers views that cannot be named.");
    }
  }
  return std::shared_ptr<const PageImporter>(
      new PageImporter(kernels, from, to, scales, std::move(cuts)));
}

void PageImporter::convert(int32_t layer, const std::byte* source, std::byte* target) const {
  convert_page_layer(*kernels_, *scales_, layer, from_, source, to_, target);
}

}  // namespace tandem::worker
