#include "model/model.h"

#include <numeric>

namespace tandem::model {

std::vector<PageGroup> Model::page_groups() const {
  PageGroup group;
  group.layers.resize(config().layers);
  std::iota(group.layers.begin(), group.layers.end(), 0);
  return {std::move(group)};
}

}  // namespace tandem::model
