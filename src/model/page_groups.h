// Deals a model's layers into page groups: layers with the same window, in groups of one size, so
// that all pages are of one size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "ops/page_layout.h"

namespace tandem::model {

struct PageGroups {
  std::vector<PageGroup> groups;        // those that see everything first, then by window
  std::vector<ops::LayerPlace> places;  // of each layer
  int32_t layers_per_group = 0;
};

// `windows`: each layer's, 0 for none.
PageGroups deal_page_groups(std::span<const int32_t> windows);

// The CPU's pages of a model.
ops::PageLayout page_layout_of(const ModelConfig& config, const PageGroups& groups,
                               ops::KvDtype dtype, int32_t block_tokens);

}  // namespace tandem::model
