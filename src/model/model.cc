#include "model/model.h"

#include <numeric>

namespace tandem::model {

Numerics numerics_of(std::string_view word) {
  return word == "exact" ? Numerics::kExact : word == "bf16" ? Numerics::kBf16 : Numerics::kFast;
}

std::vector<PageGroup> Model::page_groups() const {
  PageGroup group;
  group.layers.resize(config().layers);
  std::iota(group.layers.begin(), group.layers.end(), 0);
  return {std::move(group)};
}

const ops::KvScales& Model::kv_scales() const {
  static const ops::KvScales kOnes;
  return kOnes;
}

std::optional<int32_t> Model::find_adapter(std::string_view name) const {
  const auto loaded = adapters();
  for (size_t i = 0; i < loaded.size(); ++i) {
    if (loaded[i].name == name) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

Result<int32_t> Model::load_adapter(const std::string& /*name*/, const std::string& /*path*/) {
  return make_error(400, "unsupported_adapter", "the model takes no adapters");
}

}  // namespace tandem::model
