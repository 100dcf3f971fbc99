// SchemaCompiler: a JSON schema to a program.
//
// What a value must satisfy at one place is a *conjunction*: the set of schemas that apply to it
// ($ref, allOf and siblings only add to the set; properties of one name from several of them make a
// set again). So merging needs no algebra of schemas, and recursion ends because sets repeat. anyOf
// and oneOf are taken apart first: a conjunction with one of them is the choice between its
// branches, each added to the set. What is left is read off by type.
//
// Nothing is ignored: keywords that are not supported are refused with their place.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/decimal_range.h"
#include "grammar/front_end.h"
#include "grammar/regex_syntax.h"
#include "grammar/schema_source.h"

namespace tandem::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(FrontEnd& to, const SchemaSource& source) : to_(to), source_(source) {}
  Result<NodeId> compile_root(bool object);
  Result<NodeId> compile_arguments(const ArgumentsLayout& layout);

 private:
  // A schema that applies, with those of its disjunctions that were taken apart, and (only where
  // "unevaluated" matters) through which schemas at the same place it was reached.
  struct Item {
    const JsonValue* schema = nullptr;
    uint32_t expanded = 0;
    uint32_t scope = 0;
    auto operator<=>(const Item&) const = default;
  };
  using Conjunction = std::vector<Item>;
  struct Scope {
    const JsonValue* schema;
    uint32_t parent;
    auto operator<=>(const Scope&) const = default;
  };
  enum Type : uint32_t {
    kNull = 1,
    kBool = 2,
    kObject = 4,
    kArray = 8,
    kString = 16,
    kInteger = 32,
    kFraction = 64
  };
  static constexpr uint32_t kAnyType = 127;
  static constexpr uint32_t kAnyOf = 1;
  static constexpr uint32_t kOneOf = 2;
  static constexpr uint32_t kFlat = 4;  // its $ref and allOf are in the set already

  struct StringRules {
    uint32_t min = 0;
    uint32_t max = kUnbounded;
    struct Part {
      const JsonValue* schema;
      const char* keyword;
      std::string pattern;
    };
    std::vector<Part> parts;
  };
  struct ArrayRules {
    uint32_t min = 0;
    uint32_t max = kUnbounded;
  };
  using ObjectRules = ArrayRules;
  // What a conjunction without disjunctions says.
  struct Facts {
    uint32_t types = kAnyType;
    std::vector<const JsonValue*> enums;  // arrays of values, or a value of const
    std::vector<bool> is_const;
    NumberRules number;
    StringRules string;
    ArrayRules array;
    ObjectRules object;
  };
  struct Property {
    std::string name;
    NodeId key = kNever;  // with its colon
    NodeId value = kNever;
    bool required = false;
  };
  struct ObjectParts {
    std::vector<Property> properties;
    NodeId pair = kNever;  // any other property: key and value
  };

  tl::unexpected<Error> invalid(const JsonValue& schema, std::string_view keyword,
                                const std::string& what) const;
  tl::unexpected<Error> refused(const JsonValue& schema, std::string_view keyword,
                                const std::string& why = {}) const;

  Status check_depth(const Conjunction& conjunction) const;

  // schema_compiler.cc: conjunctions.
  Result<NodeId> compile(const Conjunction& conjunction);
  Result<NodeId> build(const Conjunction& conjunction);
  Result<bool> flatten(const Conjunction& from, Conjunction& out);  // false: nothing satisfies it
  Status check_keywords(const JsonValue& schema) const;
  struct Disjunction {
    size_t item = 0;
    uint32_t bit = 0;
    const JsonValue* branches = nullptr;
  };
  Result<std::optional<Disjunction>> find_disjunction(const Conjunction& items) const;
  // A disjunction's branches, each with all else that applies; and that alone.
  struct Branches {
    Conjunction rest;
    uint32_t scope = 0;
    std::vector<Conjunction> all = {};
  };
  Branches take_apart(const Conjunction& items, const Disjunction& split);
  Result<NodeId> build_choice(const Conjunction& items, const Disjunction& split);
  Result<NodeId> build_subsets(const Conjunction& rest, const Disjunction& split, uint32_t scope);
  Status check_disjoint(const Conjunction& rest, const Disjunction& split,
                        const std::vector<Conjunction>& branches);
  uint32_t scope_of(const JsonValue& schema, uint32_t parent);
  bool within(uint32_t scope, uint32_t ancestor) const;
  bool reached_through(uint32_t inner, const JsonValue& schema, uint32_t scope) const;
  Item child(const JsonValue& schema) const { return {&schema, 0, 0}; }

  // schema_facts.cc: keywords to facts.
  Result<Facts> gather(const Conjunction& items);
  Status gather_type(const JsonValue& schema, Facts& facts) const;
  Status gather_number(const JsonValue& schema, Facts& facts) const;
  Status gather_string(const JsonValue& schema, Facts& facts);
  Status gather_sizes(const JsonValue& schema, Facts& facts) const;
  Status read_size(const JsonValue& schema, const char* keyword, uint32_t& out, bool least) const;
  Result<RegexId> content_regex(const StringRules& rules, Spelling spelling);
  Result<RegexId> string_content(const Conjunction& conjunction, Spelling spelling);

  // schema_values.cc: enum and const, and whether a value satisfies a conjunction.
  Result<std::vector<const JsonValue*>> allowed_values(const Conjunction& items,
                                                       const Facts& facts);
  Result<bool> satisfies(const JsonValue& value, const Conjunction& conjunction);
  Result<bool> satisfies_facts(const JsonValue& value, const Conjunction& items);
  Result<bool> satisfies_array(const JsonValue& value, const Conjunction& items,
                               const Facts& facts);
  Result<bool> satisfies_object(const JsonValue& value, const Conjunction& items,
                                const Facts& facts);
  std::string text_of(const JsonValue& value) const;

  // schema_containers.cc
  Result<NodeId> build_array(const Conjunction& items, const Facts& facts);
  Result<Conjunction> element(const Conjunction& items, size_t index) const;
  size_t prefix_length(const Conjunction& items) const;
  Result<NodeId> build_object(const Conjunction& items, const Facts& facts);
  Result<NodeId> build_members(const Conjunction& items, const Facts& facts, NodeId separator);
  Result<ObjectParts> object_parts(const Conjunction& items);
  std::vector<std::string> known_names(const Conjunction& items) const;
  Result<Conjunction> property(const Conjunction& items, const std::string* name,
                               const std::set<const JsonValue*>& matched);
  Result<NodeId> other_properties(const Conjunction& items, const std::vector<std::string>& known);
  NodeId object_body(const ObjectParts& parts, NodeId separator);
  Result<NodeId> counted_body(const ObjectParts& parts, const ObjectRules& rules, NodeId separator);
  Result<RegexId> pattern_regex(const JsonValue& schema, std::string_view keyword,
                                const std::string& text, Spelling spelling);
  Result<bool> matches_pattern(const JsonValue& schema, const std::string& pattern,
                               const std::string& text);

  // schema_arguments.cc: notations other than JSON's, and arguments written one by one.
  Result<NodeId> compile_arguments(const Conjunction& conjunction);
  Result<NodeId> build_arguments(const Conjunction& conjunction);
  Result<NodeId> property_key(const Conjunction& items, const std::string& name);
  Result<NodeId> property_value(const Conjunction& schema, const std::string* name);
  NodeId other_key(RegexId names);
  NodeId value_node(const JsonValue& value);
  NodeId string_node(RegexId content);
  RegexId without_never(RegexId content, Spelling spelling);
  Spelling text_spelling() const { return gemma() ? Spelling::kUtf8 : Spelling::kJson; }
  bool gemma() const { return to_.notation.kind == Notation::Kind::kGemma; }
  bool python() const { return to_.notation.kind == Notation::Kind::kPython; }
  const char* word(const char* json) const;

  bool spaced() const { return to_.spelling == protocol::JsonSpelling::kSpaced && !gemma(); }
  std::string comma() const { return spaced() ? ", " : ","; }
  std::string colon() const { return spaced() ? ": " : ":"; }
  RegexStore& regex() { return to_.program.regex(); }
  RegexId any_text(Spelling spelling) { return regex().star(any_character(regex(), spelling)); }

  struct Known {
    std::optional<NodeId> node;
    std::optional<RuleId> rule;
  };
  FrontEnd& to_;
  const SchemaSource& source_;
  std::map<Conjunction, Known> known_;
  std::map<Scope, uint32_t> scope_index_;
  std::vector<Scope> scopes_{{nullptr, 0}};
  std::map<std::pair<std::string, Spelling>, RegexId> patterns_;
  std::set<const JsonValue*> noted_;
  // Of a list of `enum`, or a `const`: what equal values have in common.
  std::unordered_map<const JsonValue*, std::unordered_set<std::string>> enum_keys_;
  const ArgumentsLayout* layout_ = nullptr;  // while the properties of arguments are built
  int depth_ = 0;
};

// The expressions of the formats that are enforced, as patterns of the whole text; nullptr for
// others.
const char* format_pattern(std::string_view name);

}  // namespace tandem::grammar
