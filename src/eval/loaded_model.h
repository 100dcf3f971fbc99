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

}  // namespace tandem::eval
