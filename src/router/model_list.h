// The models that a router serves, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "router/connectors/connector.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::router {

// A model that is served: what all of its workers have in common. Requests in flight keep theirs.
struct ServedModel {
  std::string id;
  std::string parent;          // of another engine's adapter: its base model
  int64_t context_length = 0;  // 0: unknown
  std::string lineage;
  int32_t block_tokens = 16;
  std::shared_ptr<const text::Tokenizer> tokenizer;         // null: another engine's model
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
  std::vector<std::string> adapters;
  const Connector* connector = nullptr;  // its workers' row; one kind at a time

  // Another engine's: the router reads no more of a body than it must.
  bool opaque() const { return connector->opaque; }
  bool has_adapter(std::string_view name) const;
};

// Every model that was seen, in the order in which they came. Immutable: a change is a new list.
class ModelList {
 public:
  using Pointer = std::shared_ptr<const ServedModel>;
  explicit ModelList(std::vector<Pointer> models = {}) : models_(std::move(models)) {}

  const std::vector<Pointer>& all() const { return models_; }
  Pointer named(std::string_view id) const;  // a model, not an adapter; null: none
  // What a request that names `name` gets: a model, the base model of an adapter, or for "default"
  // the only model. Errors: 404 "model_not_found" and 400 "model_required", with the names.
  Result<Pointer> choose(const std::string& name) const;

 private:
  std::string names() const;
  std::vector<Pointer> models_;
};

}  // namespace tandem::router
