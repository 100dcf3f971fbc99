#include "model/page_groups.h"

#include <map>
#include <numeric>

namespace tandem::model {

PageGroups deal_page_groups(std::span<const int32_t> windows) {
  std::map<int32_t, std::vector<int32_t>> by_window;
  for (size_t i = 0; i < windows.size(); ++i)
    by_window[windows[i]].push_back(static_cast<int32_t>(i));
  int32_t size = 0;
  for (const auto& [window, layers] : by_window)
    size = std::gcd(size, static_cast<int32_t>(layers.size()));

  PageGroups dealt;
  dealt.layers_per_group = size;
  dealt.places.resize(windows.size());
  for (const auto& [window, layers] : by_window) {
    for (size_t begin = 0; begin < layers.size(); begin += static_cast<size_t>(size)) {
      PageGroup group = {.window = window,
                         .layers = {layers.begin() + static_cast<std::ptrdiff_t>(begin),
                                    layers.begin() + static_cast<std::ptrdiff_t>(begin) + size}};
      for (int32_t slot = 0; slot < size; ++slot) {
        dealt.places[static_cast<size_t>(group.layers[static_cast<size_t>(slot)])] = {
            .group = static_cast<int32_t>(dealt.groups.size()), .slot = slot};
      }
      dealt.groups.push_back(std::move(group));
    }
  }
  return dealt;
}

ops::PageLayout page_layout_of(const ModelConfig& config, const PageGroups& groups,
                               ops::KvDtype dtype, int32_t block_tokens) {
  return {.dtype = dtype,
          .layout_id = ops::kCpuLayoutId,
          .layers = groups.layers_per_group,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .block_tokens = block_tokens,
          .groups = static_cast<int32_t>(groups.groups.size())};
}

}  // namespace tandem::model
