// SchemaSource: a JSON schema's document: where its parts are, and what $ref means in each.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::grammar {

class SchemaSource {
 public:
  // `root` outlives this. `pointer` begins the pointers of errors. Errors: 400 for a $schema that
  // is not known.
  static Result<SchemaSource> read(const JsonValue& root, const std::string& pointer);

  const JsonValue& root() const { return *root_; }
  // The JSON pointer of a schema (an object or a boolean).
  std::string pointer(const JsonValue& schema) const;
  std::string pointer(const JsonValue& schema, std::string_view keyword) const;
  // What $ref in `schema` stands for. Errors: 400 "unsupported_grammar" for another document,
  // "invalid_grammar".
  Result<const JsonValue*> resolve(const JsonValue& schema, const std::string& reference) const;
  // In draft 7 and before, what stands beside $ref counts for nothing.
  bool ref_alone() const { return ref_alone_; }
  bool uses_unevaluated() const { return uses_unevaluated_; }

 private:
  struct Place {
    std::string pointer;
    std::string base;
  };
  void index(const JsonValue& value, const std::string& pointer, std::string base);

  const JsonValue* root_ = nullptr;
  std::unordered_map<const JsonValue*, Place> places_;
  std::unordered_map<std::string, const JsonValue*>
      resources_;  // by URI, with an anchor as fragment
  bool ref_alone_ = false;
  bool uses_unevaluated_ = false;
};

}  // namespace tandem::grammar
