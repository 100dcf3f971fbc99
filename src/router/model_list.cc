#include "router/model_list.h"

#include <algorithm>

namespace tandem::router {

bool ServedModel::has_adapter(std::string_view name) const {
  return std::binary_search(adapters.begin(), adapters.end(), name);
}

ModelList::Pointer ModelList::named(std::string_view id) const {
  const auto found = std::find_if(models_.begin(), models_.end(),
                                  [&](const Pointer& model) { return model->id == id; });
  return found == models_.end() ? nullptr : *found;
}

std::string ModelList::names() const {
  std::string text;
  const auto add = [&](const std::string& name) {
    text += (text.empty() ? "'" : ", '") + name + "'";
  };
  for (const Pointer& model : models_) {
    add(model->id);
    std::for_each(model->adapters.begin(), model->adapters.end(), add);
  }
  return text;
}

Result<ModelList::Pointer> ModelList::choose(const std::string& name) const {
  if (models_.empty()) {
    return make_error(503, "no_workers",
                      "no worker is ready to take the request; retry in a moment");
  }
  if (name == "default") {
    if (models_.size() == 1) return models_.front();
    return make_error(400, "model_required",
                      "several models are served here; name one of " + names(), "/model");
  }
  if (Pointer model = named(name)) return model;
  for (const Pointer& model : models_) {
    if (model->has_adapter(name)) return model;
  }
  return make_error(404, "model_not_found",
                    "the model '" + name + "' is not served here; use " + names() +
                        (models_.size() == 1 ? " or 'default'" : ""),
                    "/model");
}

}  // namespace tandem::router
