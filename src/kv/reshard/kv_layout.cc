#include "kv/reshard/kv_layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tandem::kv {

namespace {

tl::unexpected<Error> impossible(std::string message) {
  return make_error(409, "kv_layout", std::move(message));
}

Status check_numbers(const std::vector<LayerShape>& model, const KvPlace& place,
                     const std::string& side) {
  const KvLayout& layout = place.layout;
  const auto layers = static_cast<int64_t>(model.size());
  if (layers == 0 || layers > kMaxReshardLayers)
    return impossible(side + " has " + std::to_string(layers) + " layers.");
  if (layout.tensor_ranks < 1 || layout.data_ranks < 1 || layout.stages.empty() ||
      int64_t{layout.tensor_ranks} * layout.data_ranks *
              static_cast<int64_t>(layout.stages.size()) >
          kMaxReshardRanks)
    return impossible(side + " has an impossible number of ranks.");
  if (place.owner < 0 || place.owner >= layout.data_ranks)
    return impossible(side + " has no data rank " + std::to_string(place.owner) + ".");
  if (layout.block_tokens < 1 || layout.block_tokens > 4096)
    return impossible(side + "'s blocks have " + std::to_string(layout.block_tokens) + " tokens.");
  if (layout.format.value_bytes < 1 || layout.format.value_bytes > 8 ||
      layout.format.scale_bytes < 0 || layout.format.scale_bytes > 8)
    return impossible(side + "'s values have an impossible size.");
  if (layout.layout_id != 1)
    return impossible(side + "'s page layout " + std::to_string(layout.layout_id) +
                      " is not known here.");
  return {};
}

Status check_stages(const std::vector<LayerShape>& model, const KvLayout& layout,
                    const std::string& side) {
  if (layout.pages.size() != model.size())
    return impossible(side + " places " + std::to_string(layout.pages.size()) + " of " +
                      std::to_string(model.size()) + " layers.");
  if (layout.stages.front() != 0) return impossible("No rank of " + side + " holds layer 0.");
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    const int64_t end =
        i + 1 < layout.stages.size() ? layout.stages[i + 1] : static_cast<int64_t>(model.size());
    if (layout.stages[i] >= end)
      return impossible("Stage " + std::to_string(i) + " of " + side + " has no layers.");
  }
  return {};
}

Status check_pages(const std::vector<LayerShape>& model, const KvLayout& layout,
                   const std::string& side) {
  std::set<std::tuple<size_t, int32_t, int32_t>> used;     // stage, group, slot
  std::map<std::pair<size_t, int32_t>, LayerShape> shape;  // of a group in a stage
  size_t stage = 0;
  for (size_t layer = 0; layer < model.size(); ++layer) {
    while (stage + 1 < layout.stages.size() &&
           static_cast<int64_t>(layer) >= layout.stages[stage + 1])
      ++stage;
    const LayerPage& page = layout.pages[layer];
    if (page.group < 0 || page.slot < 0 || page.slot >= kMaxReshardLayers ||
        !used.emplace(stage, page.group, page.slot).second)
      return impossible(side + " has no place of its own for layer " + std::to_string(layer) + ".");
    const auto [known, added] = shape.try_emplace({stage, page.group}, model[layer]);
    if (known->second != model[layer])
      return impossible("Page group " + std::to_string(page.group) + " of " + side +
                        " mixes layers of different shapes.");
  }
  return {};
}

}  // namespace

Status check_place(const std::vector<LayerShape>& model, const KvPlace& place,
                   std::string_view side_name) {
  const std::string side(side_name);
  TANDEM_CHECK(check_numbers(model, place, side));
  TANDEM_CHECK(check_stages(model, place.layout, side));
  for (size_t layer = 0; layer < model.size(); ++layer) {
    const LayerShape& shape = model[layer];
    const bool sane = shape.heads >= 1 && shape.heads <= 65536 && shape.k_dim >= 1 &&
                      shape.k_dim <= 65536 && shape.v_dim <= 65536;
    if (!sane || (shape.latent ? shape.heads != 1 || shape.v_dim != 0 : shape.v_dim < 1))
      return impossible("Layer " + std::to_string(layer) + " has an impossible shape.");
    const int32_t ranks = place.layout.tensor_ranks;
    if (!shape.latent && shape.heads % ranks != 0 && ranks % shape.heads != 0)
      return impossible(std::to_string(shape.heads) + " KV heads of layer " +
                        std::to_string(layer) + " cannot be split evenly over " + side + "'s " +
                        std::to_string(ranks) + " tensor ranks.");
  }
  return check_pages(model, place.layout, side);
}

Status check_pair(const std::vector<LayerShape>& model, const KvPlace& source,
                  const KvPlace& dest) {
  TANDEM_CHECK(check_place(model, source, "prefill"));
  TANDEM_CHECK(check_place(model, dest, "decode"));
  if (source.layout.format != dest.layout.format &&
      source.layout.block_tokens != dest.layout.block_tokens)
    return impossible("Values can be converted only between blocks of the same size, not from " +
                      std::to_string(source.layout.block_tokens) + " to " +
                      std::to_string(dest.layout.block_tokens) + " tokens.");
  return {};
}

}  // namespace tandem::kv
