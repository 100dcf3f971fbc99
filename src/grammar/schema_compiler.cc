#include "grammar/schema_compiler.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

constexpr int kDeepest = 250;
constexpr size_t kMostBranches = 2000;
constexpr size_t kMostSubsets = 5;  // branches whose subsets are tried
constexpr size_t kMostDisjoint = 64;

// Keywords whose meaning no grammar here has.
constexpr const char* kRefused[] = {
    "not",          "if",       "dependentSchemas", "dependentRequired",
    "dependencies", "contains", "$dynamicRef",      "$recursiveRef"};

}  // namespace

tl::unexpected<Error> SchemaCompiler::invalid(const JsonValue& schema, std::string_view keyword,
                                              const std::string& what) const {
  return make_error(400, "invalid_grammar",
                    "The schema's '" + std::string(keyword) + "' " + what + ".",
                    source_.pointer(schema, keyword));
}

tl::unexpected<Error> SchemaCompiler::refused(const JsonValue& schema, std::string_view keyword,
                                              const std::string& why) const {
  return make_error(400, "unsupported_grammar",
                    "The schema keyword '" + std::string(keyword) + "' is not supported" +
                        (why.empty() ? "" : ": " + why) + ".",
                    source_.pointer(schema, keyword));
}

Result<NodeId> SchemaCompiler::compile_root(bool object) {
  static const JsonValue kAnyObject = JsonValue::object({{"type", JsonValue::string("object")}});
  const JsonValue* type = source_.root().find("type");
  Conjunction whole{child(source_.root())};
  if (object && !(type != nullptr && type->is_string() && type->as_string() == "object"))
    whole.push_back(child(kAnyObject));
  return compile(whole);
}

Status SchemaCompiler::check_keywords(const JsonValue& schema) const {
  for (const char* keyword : kRefused) {
    if (schema.find(keyword) == nullptr) continue;
    // Without branches it only annotates.
    if (std::string_view(keyword) == "if" && schema.find("then") == nullptr &&
        schema.find("else") == nullptr && !source_.uses_unevaluated())
      continue;
    return refused(schema, keyword);
  }
  const JsonValue* unique = schema.find("uniqueItems");
  if (unique != nullptr && !unique->is_bool())
    return invalid(schema, "uniqueItems", "must be true or false");
  if (unique != nullptr && unique->as_bool()) return refused(schema, "uniqueItems");
  return {};
}

// Everything that a schema says directly: through $ref and allOf, as one list.
Result<bool> SchemaCompiler::flatten(const Conjunction& from, Conjunction& out) {
  struct Work {
    Item item;
    std::vector<const JsonValue*> through;  // by $ref and allOf
  };
  std::vector<Work> work;
  for (size_t i = from.size(); i-- > 0;) work.push_back({from[i], {}});
  std::set<Item> seen;
  while (!work.empty()) {
    Work at = std::move(work.back());
    work.pop_back();
    const JsonValue& schema = *at.item.schema;
    if (schema.is_bool()) {
      if (!schema.as_bool()) return false;
      continue;
    }
    if (!schema.is_object())
      return make_error(400, "invalid_grammar", "A schema must be an object, true or false.",
                        source_.pointer(schema));
    if (std::ranges::find(at.through, &schema) != at.through.end())
      return refused(schema, "$ref", "it leads to itself");
    if (!seen.insert(at.item).second) continue;
    TANDEM_CHECK(to_.check_limits());
    at.through.push_back(&schema);
    const uint32_t scope = source_.uses_unevaluated() ? scope_of(schema, at.item.scope) : 0;
    const JsonValue* ref = schema.find("$ref");
    const bool alone = ref != nullptr && source_.ref_alone();
    if (!alone) {
      TANDEM_CHECK(check_keywords(schema));
      out.push_back({&schema, at.item.expanded | kFlat, at.item.scope});
    }
    if ((at.item.expanded & kFlat) != 0) continue;
    if (!alone) {
      if (const JsonValue* all = schema.find("allOf")) {
        if (!all->is_array() || all->items().empty())
          return invalid(schema, "allOf", "must be a list of schemas");
        for (size_t i = all->items().size(); i-- > 0;)
          work.push_back({{&all->items()[i], 0, scope}, at.through});
      }
    }
    if (ref != nullptr) {
      if (!ref->is_string()) return invalid(schema, "$ref", "must be a text");
      TANDEM_TRY(target, source_.resolve(schema, ref->as_string()));
      work.push_back({{target, 0, scope}, at.through});
    }
  }
  return true;
}

uint32_t SchemaCompiler::scope_of(const JsonValue& schema, uint32_t parent) {
  const Scope scope{&schema, parent};
  const auto [at, fresh] = scope_index_.emplace(scope, static_cast<uint32_t>(scopes_.size()));
  if (fresh) scopes_.push_back(scope);
  return at->second;
}

bool SchemaCompiler::within(uint32_t scope, uint32_t ancestor) const {
  while (scope != ancestor && scope != 0) scope = scopes_[scope].parent;
  return scope == ancestor;
}

Status SchemaCompiler::check_depth(const Conjunction& conjunction) const {
  if (depth_ < kDeepest) return {};
  Error error{400, "grammar_too_large", "The schema is nested too deeply."};
  // The schema that was added last and is the client's.
  for (const Item& item : conjunction) {
    if (std::string place = source_.pointer(*item.schema); !place.empty())
      error.pointer = std::move(place);
  }
  return tl::unexpected(std::move(error));
}

Result<NodeId> SchemaCompiler::compile(const Conjunction& conjunction) {
  // The set is the key; its order is that of the properties.
  Conjunction key = conjunction;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto known = known_.find(key);
  if (known != known_.end()) {
    if (known->second.node) return *known->second.node;
    if (!known->second.rule) {
      known->second.rule = to_.program.new_rule("schema");
      to_.program.define(*known->second.rule,
                         kNothing);  // while it is being built: it derives something
    }
    return to_.program.call(*known->second.rule);
  }
  TANDEM_CHECK(check_depth(conjunction));
  TANDEM_CHECK(to_.check_limits());
  Known& entry = known_[std::move(key)];
  const Deeper deeper(depth_);
  auto built = build(conjunction);
  if (!built) return built;
  if (entry.rule) {
    to_.program.define(*entry.rule, *built);
    entry.node = to_.program.call(*entry.rule);
  } else {
    entry.node = *built;
  }
  return *entry.node;
}

Result<NodeId> SchemaCompiler::build(const Conjunction& conjunction) {
  // In the order in which schemas were written, since that is the order of properties.
  Conjunction items;
  TANDEM_TRY(possible, flatten(conjunction, items));
  if (!possible) return kNever;
  TANDEM_TRY(split, find_disjunction(items));
  if (split) return build_choice(items, *split);
  TANDEM_TRY(facts, gather(items));
  Program& program = to_.program;
  std::vector<NodeId> parts;
  if (!facts.enums.empty()) {
    TANDEM_TRY(values, allowed_values(items, facts));
    std::vector<std::string> texts;
    for (const JsonValue* value : values) {
      if (gemma()) {
        parts.push_back(value_node(*value));
      } else {
        texts.push_back(text_of(*value));
      }
    }
    if (!gemma()) parts.push_back(program.lexeme(regex().literals(std::move(texts))));
    return program.choice(parts);
  }
  std::vector<std::string> words;
  if ((facts.types & kNull) != 0) words.emplace_back(word("null"));
  if ((facts.types & kBool) != 0) words.insert(words.end(), {word("true"), word("false")});
  if (!words.empty()) parts.push_back(program.lexeme(regex().literals(std::move(words))));
  if ((facts.types & (kInteger | kFraction)) != 0) {
    facts.number.integer = (facts.types & kFraction) == 0;
    const auto number = number_regex(regex(), facts.number);
    if (!number) {
      for (const Item& item : items) {
        if (item.schema->find("multipleOf") != nullptr)
          return refused(*item.schema, "multipleOf", "the step is too fine or too large");
      }
    } else {
      parts.push_back(program.lexeme(*number));
    }
  }
  if ((facts.types & kString) != 0) {
    TANDEM_TRY(content, content_regex(facts.string, text_spelling()));
    parts.push_back(string_node(content));
  }
  if ((facts.types & kArray) != 0) {
    TANDEM_TRY(array, build_array(items, facts));
    parts.push_back(array);
  }
  if ((facts.types & kObject) != 0) {
    TANDEM_TRY(object, build_object(items, facts));
    parts.push_back(object);
  }
  return program.choice(parts);
}

Result<std::optional<SchemaCompiler::Disjunction>> SchemaCompiler::find_disjunction(
    const Conjunction& items) const {
  for (size_t i = 0; i < items.size(); ++i) {
    for (const auto& [bit, keyword] : {std::pair{kAnyOf, "anyOf"}, std::pair{kOneOf, "oneOf"}}) {
      const JsonValue* branches = items[i].schema->find(keyword);
      if (branches == nullptr || (items[i].expanded & bit) != 0) continue;
      if (!branches->is_array() || branches->items().empty())
        return invalid(*items[i].schema, keyword, "must be a list of schemas");
      if (branches->items().size() > kMostBranches)
        return refused(*items[i].schema, keyword, "it has too many branches");
      return Disjunction{i, bit, branches};
    }
  }
  return std::nullopt;
}

SchemaCompiler::Branches SchemaCompiler::take_apart(const Conjunction& items,
                                                    const Disjunction& split) {
  Branches out{.rest = items};
  out.rest[split.item].expanded |= split.bit;
  if (source_.uses_unevaluated())
    out.scope = scope_of(*items[split.item].schema, items[split.item].scope);
  for (const JsonValue& branch : split.branches->items()) {
    out.all.push_back(out.rest);
    out.all.back().push_back({&branch, 0, out.scope});
  }
  return out;
}

Result<NodeId> SchemaCompiler::build_choice(const Conjunction& items, const Disjunction& split) {
  const auto [rest, scope, branches] = take_apart(items, split);
  if (split.bit == kOneOf) TANDEM_CHECK(check_disjoint(rest, split, branches));
  // What is evaluated depends on all branches that hold.
  if (split.bit == kAnyOf && source_.uses_unevaluated()) return build_subsets(rest, split, scope);
  std::vector<NodeId> parts;
  for (const Conjunction& branch : branches) {
    TANDEM_TRY(part, compile(branch));
    parts.push_back(part);
  }
  return to_.program.choice(parts);
}

Result<NodeId> SchemaCompiler::build_subsets(const Conjunction& rest, const Disjunction& split,
                                             uint32_t scope) {
  const auto& branches = split.branches->items();
  if (branches.size() > kMostSubsets)
    return refused(*rest[split.item].schema, "anyOf",
                   "it has too many branches beside unevaluated properties or items");
  std::vector<NodeId> parts;
  for (uint32_t subset = 1; subset < (1U << branches.size()); ++subset) {
    Conjunction with = rest;
    for (size_t i = 0; i < branches.size(); ++i) {
      if ((subset >> i & 1) != 0) with.push_back({&branches[i], 0, scope});
    }
    TANDEM_TRY(part, compile(with));
    parts.push_back(part);
  }
  return to_.program.choice(parts);
}

// Exactly one branch holds when no value satisfies two of them.
Status SchemaCompiler::check_disjoint(const Conjunction& rest, const Disjunction& split,
                                      const std::vector<Conjunction>& branches) {
  const JsonValue& schema = *rest[split.item].schema;
  std::string overlap;
  for (size_t a = 0; a < branches.size() && overlap.empty(); ++a) {
    for (size_t b = a + 1; b < branches.size(); ++b) {
      if (branches.size() > kMostDisjoint) {
        overlap = "it has too many branches to compare";
        break;
      }
      Conjunction two = branches[a];
      two.push_back(branches[b].back());
      TANDEM_TRY(node, compile(two));
      TANDEM_CHECK(to_.check_limits());
      if (node == kNever || !to_.program.derives_anything(node)) continue;
      overlap = "branches " + std::to_string(a) + " and " + std::to_string(b) + " overlap";
      break;
    }
  }
  if (overlap.empty()) return {};
  if (to_.strict) return refused(schema, "oneOf", overlap);
  if (noted_.insert(split.branches).second)
    to_.notes.push_back(source_.pointer(schema, "oneOf") + " is read as anyOf: " + overlap + ".");
  return {};
}

Result<NodeId> build_json_schema(FrontEnd& to, const JsonValue& schema, const std::string& pointer,
                                 bool object) {
  TANDEM_TRY(source, SchemaSource::read(schema, pointer));
  return SchemaCompiler(to, source).compile_root(object);
}

Result<NodeId> build_arguments(FrontEnd& to, const JsonValue& schema, const std::string& pointer,
                               const ArgumentsLayout& layout) {
  TANDEM_TRY(source, SchemaSource::read(schema, pointer));
  return SchemaCompiler(to, source).compile_arguments(layout);
}

}  // namespace tandem::grammar
