// A model with its text side, as the commands load it; what eval needs of a served model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::eval {

struct LoadedModel {
  std::unique_ptr<model::Model> model;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::string name;
  std::string lineage;  // what names these weights
};

// What names how results were computed, what the KV pages hold included.
inline std::string numeric_path_of(const model::Model& model) {
  return model.numeric_path() + "-" + std::string(ops::kv_dtype_name(model.page_layout(16).dtype));
}

}  // namespace tandem::eval
