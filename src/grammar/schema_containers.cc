// Arrays and objects.
#include <algorithm>
#include <map>

#include "grammar/schema_compiler.h"

namespace tandem::grammar {
namespace {

constexpr size_t kMostPatterns = 6;
constexpr size_t kMostCounted = 100'000;

// The schemas of an array's first elements, whichever way the draft says it.
const JsonValue* prefix_of(const JsonValue& schema) {
  const JsonValue* prefix = schema.find("prefixItems");
  if (prefix != nullptr) return prefix;
  const JsonValue* items = schema.find("items");
  return items != nullptr && items->is_array() ? items : nullptr;
}
const JsonValue* rest_of(const JsonValue& schema) {
  const JsonValue* items = schema.find("items");
  if (items == nullptr) return nullptr;
  return items->is_array() ? schema.find("additionalItems") : items;
}

}  // namespace

size_t SchemaCompiler::prefix_length(const Conjunction& items) const {
  size_t out = 0;
  for (const Item& item : items) {
    const JsonValue* prefix = prefix_of(*item.schema);
    if (prefix != nullptr) out = std::max(out, prefix->items().size());
  }
  return out;
}

// What applies to the element at `index`.
Result<SchemaCompiler::Conjunction> SchemaCompiler::element(const Conjunction& items,
                                                            size_t index) const {
  Conjunction out;
  std::vector<bool> evaluates;
  for (const Item& item : items) {
    const JsonValue& schema = *item.schema;
    const JsonValue* prefix = prefix_of(schema);
    const JsonValue* rest = rest_of(schema);
    if (prefix != nullptr && !prefix->is_array())
      return invalid(schema, "prefixItems", "must be a list of schemas");
    const JsonValue* own =
        prefix != nullptr && index < prefix->items().size() ? &prefix->items()[index] : rest;
    if (own != nullptr) out.push_back(child(*own));
    evaluates.push_back(own != nullptr || schema.find("unevaluatedItems") != nullptr);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonValue* left = items[i].schema->find("unevaluatedItems");
    if (left == nullptr) continue;
    const uint32_t own = items[i].scope;
    bool evaluated = prefix_of(*items[i].schema) != nullptr &&
                     index < prefix_of(*items[i].schema)->items().size();
    evaluated = evaluated || rest_of(*items[i].schema) != nullptr;
    for (size_t k = 0; k < items.size(); ++k) {
      if (k != i && evaluates[k] && reached_through(items[k].scope, *items[i].schema, own))
        evaluated = true;
    }
    if (!evaluated) out.push_back(child(*left));
  }
  return out;
}

Result<NodeId> SchemaCompiler::build_array(const Conjunction& items, const Facts& facts) {
  Program& program = to_.program;
  const size_t prefix = prefix_length(items);
  uint32_t max = facts.array.max;
  std::vector<NodeId> first;
  for (size_t i = 0; i < prefix && i < max; ++i) {
    TANDEM_TRY(schema, element(items, i));
    TANDEM_TRY(node, compile(schema));
    if (node == kNever) {
      max = static_cast<uint32_t>(i);
      break;
    }
    first.push_back(node);
  }
  NodeId rest = kNever;
  if (max > first.size()) {
    TANDEM_TRY(schema, element(items, prefix));
    TANDEM_TRY(node, compile(schema));
    rest = node;
  }
  const auto count = static_cast<uint32_t>(first.size());
  if (rest == kNever) max = std::min(max, count);
  const uint32_t min = facts.array.min;
  if (min > max) return kNever;
  const NodeId separator = program.literal(comma());
  const uint32_t more = max == kUnbounded ? kUnbounded : max - std::min(max, count);
  NodeId body = kNothing;
  if (count == 0) {
    if (rest != kNever && max > 0) {
      const uint32_t others = max == kUnbounded ? kUnbounded : max - 1;
      body = program.sequence({rest, program.repeat(program.sequence({separator, rest}),
                                                    min > 0 ? min - 1 : 0, others)});
      if (min == 0) body = program.optional(body);
    }
  } else {
    if (rest != kNever)
      body =
          program.repeat(program.sequence({separator, rest}), min > count ? min - count : 0, more);
    for (uint32_t i = count; i-- > 0;) {
      body = program.sequence({i > 0 ? separator : kNothing, first[i], body});
      if (i >= min) body = program.optional(body);
    }
  }
  return program.sequence({program.literal("["), body, program.literal("]")});
}

std::vector<std::string> SchemaCompiler::known_names(const Conjunction& items) const {
  std::vector<std::string> out;
  std::set<std::string_view> seen;
  for (const Item& item : items) {
    const JsonValue* properties = item.schema->find("properties");
    if (properties == nullptr) continue;
    for (const auto& [name, unused] : properties->members()) {
      if (seen.insert(name).second) out.push_back(name);
    }
  }
  for (const Item& item : items) {
    const JsonValue* required = item.schema->find("required");
    if (required == nullptr) continue;
    for (const JsonValue& name : required->items()) {
      if (seen.insert(name.as_string()).second) out.push_back(name.as_string());
    }
  }
  return out;
}

// What applies to a property: of a known name, or (null) of any other; `matched`: those of
// patternProperties whose patterns its name matches.
Result<SchemaCompiler::Conjunction> SchemaCompiler::property(
    const Conjunction& items, const std::string* name, const std::set<const JsonValue*>& matched) {
  Conjunction out;
  std::vector<bool> evaluates;
  std::vector<bool> own_evaluates;
  for (const Item& item : items) {
    const JsonValue& schema = *item.schema;
    bool own = false;
    const JsonValue* properties = schema.find("properties");
    const JsonValue* value =
        properties != nullptr && name != nullptr ? properties->find(*name) : nullptr;
    if (value != nullptr) {
      out.push_back(child(*value));
      own = true;
    }
    if (const JsonValue* patterns = schema.find("patternProperties")) {
      for (const auto& [pattern, member] : patterns->members()) {
        if (!matched.contains(&member)) continue;
        out.push_back(child(member));
        own = true;
      }
    }
    const JsonValue* additional = schema.find("additionalProperties");
    if (!own && additional != nullptr) {
      out.push_back(child(*additional));
      own = true;
    }
    own_evaluates.push_back(own);
    evaluates.push_back(own || schema.find("unevaluatedProperties") != nullptr);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonValue* left = items[i].schema->find("unevaluatedProperties");
    if (left == nullptr) continue;
    bool evaluated = own_evaluates[i];
    for (size_t k = 0; k < items.size(); ++k) {
      if (k != i && evaluates[k] &&
          reached_through(items[k].scope, *items[i].schema, items[i].scope))
        evaluated = true;
    }
    if (!evaluated) out.push_back(child(*left));
  }
  return out;
}

// Whether a scope lies within that of `schema`, itself reached in `scope`.
bool SchemaCompiler::reached_through(uint32_t inner, const JsonValue& schema,
                                     uint32_t scope) const {
  const auto own = scope_index_.find(Scope{&schema, scope});
  return own != scope_index_.end() && within(inner, own->second);
}

Result<bool> SchemaCompiler::matches_pattern(const JsonValue& schema, const std::string& pattern,
                                             const std::string& text) {
  TANDEM_TRY(matcher, pattern_regex(schema, "patternProperties", pattern, Spelling::kUtf8));
  return regex().matches(matcher, text);
}

// Names that no schema knows, by which patterns they match: each kind has its own schema.
Result<NodeId> SchemaCompiler::other_properties(const Conjunction& items,
                                                const std::vector<std::string>& known) {
  struct Kind {
    RegexId names;
    std::set<const JsonValue*> matched;
  };
  const Spelling spelling = layout_ != nullptr ? Spelling::kUtf8 : text_spelling();
  std::vector<RegexId> names{without_never(any_text(spelling), spelling)};
  for (const Item& item : items) {
    const JsonValue* rule = item.schema->find("propertyNames");
    if (rule == nullptr) continue;
    TANDEM_TRY(allowed, string_content({child(*rule)}, spelling));
    names.push_back(allowed);
  }
  if (!known.empty()) {
    std::vector<std::string> texts;
    texts.reserve(known.size());
    for (const std::string& name : known) texts.push_back(spell(name, spelling));
    names.push_back(regex().negate(regex().literals(std::move(texts))));
  }
  std::vector<Kind> kinds{{regex().both(names), {}}};
  size_t patterns = 0;
  for (const Item& item : items) {
    const JsonValue* rules = item.schema->find("patternProperties");
    if (rules == nullptr) continue;
    for (const auto& [pattern, schema] : rules->members()) {
      if (++patterns > kMostPatterns)
        return refused(*item.schema, "patternProperties", "there are too many patterns");
      TANDEM_TRY(matcher, pattern_regex(*item.schema, "patternProperties", pattern, spelling));
      std::vector<Kind> split;
      for (const Kind& kind : kinds) {
        Kind inside{regex().both({kind.names, matcher}), kind.matched};
        inside.matched.insert(&schema);
        if (!regex().is_empty(inside.names)) split.push_back(std::move(inside));
        Kind outside{regex().both({kind.names, regex().negate(matcher)}), kind.matched};
        if (!regex().is_empty(outside.names)) split.push_back(std::move(outside));
      }
      kinds = std::move(split);
    }
  }
  Program& program = to_.program;
  std::vector<NodeId> pairs;
  for (const Kind& kind : kinds) {
    TANDEM_TRY(schema, property(items, nullptr, kind.matched));
    TANDEM_TRY(value, property_value(schema, nullptr));
    if (value == kNever) continue;
    pairs.push_back(program.sequence({other_key(kind.names), value}));
  }
  return program.choice(pairs);
}

Result<SchemaCompiler::ObjectParts> SchemaCompiler::object_parts(const Conjunction& items) {
  ObjectParts out;
  std::set<std::string> required;
  for (const Item& item : items) {
    const JsonValue& schema = *item.schema;
    for (const char* keyword : {"properties", "patternProperties"}) {
      const JsonValue* value = schema.find(keyword);
      if (value != nullptr && !value->is_object())
        return invalid(schema, keyword, "must be an object of schemas");
    }
    const JsonValue* names = schema.find("required");
    if (names == nullptr || names->is_bool()) continue;  // draft 3 had true
    if (!names->is_array()) return invalid(schema, "required", "must be a list of names");
    for (const JsonValue& name : names->items()) {
      if (!name.is_string()) return invalid(schema, "required", "must be a list of names");
      required.insert(name.as_string());
    }
  }
  const std::vector<std::string> known = known_names(items);
  for (const std::string& name : known) {
    std::set<const JsonValue*> matched;
    bool named = true;
    for (const Item& item : items) {
      if (const JsonValue* patterns = item.schema->find("patternProperties")) {
        for (const auto& [pattern, schema] : patterns->members()) {
          TANDEM_TRY(matches, matches_pattern(*item.schema, pattern, name));
          if (matches) matched.insert(&schema);
        }
      }
      if (const JsonValue* rule = item.schema->find("propertyNames")) {
        TANDEM_TRY(fits, satisfies(JsonValue::string(name), {child(*rule)}));
        named = named && fits;
      }
    }
    Property made{.name = name, .required = required.contains(name)};
    if (named) {
      TANDEM_TRY(schema, property(items, &name, matched));
      TANDEM_TRY(value, property_value(schema, &name));
      made.value = value;
    }
    if (made.value == kNever && !made.required) continue;
    TANDEM_TRY(key, property_key(items, name));
    made.key = key;
    out.properties.push_back(std::move(made));
  }
  TANDEM_TRY(pair, other_properties(items, known));
  out.pair = pair;
  return out;
}

// Properties in their order, those not required or not; then others.
NodeId SchemaCompiler::object_body(const ObjectParts& parts, NodeId separator) {
  Program& program = to_.program;
  // after[i]: what may follow when something stands before property i; `body`: when nothing does.
  NodeId after = program.repeat(program.sequence({separator, parts.pair}), 0, kUnbounded);
  NodeId body =
      parts.pair == kNever ? kNothing : program.optional(program.sequence({parts.pair, after}));
  for (size_t i = parts.properties.size(); i-- > 0;) {
    const Property& property = parts.properties[i];
    const NodeId own = program.sequence({property.key, property.value});
    const NodeId first = program.sequence({own, after});
    body = property.required ? first : program.choice({first, body});
    const NodeId next = program.sequence({separator, own});
    after = program.sequence({property.required ? next : program.optional(next), after});
  }
  return body;
}

// The same with so many properties: a node for each place and count.
Result<NodeId> SchemaCompiler::counted_body(const ObjectParts& parts, const ObjectRules& rules,
                                            NodeId separator) {
  Program& program = to_.program;
  const size_t size = parts.properties.size();
  const size_t most = std::min<size_t>(size, rules.max);
  if ((size + 1) * (most + 1) > kMostCounted)
    return make_error(400, "grammar_too_large", "An object has too many properties to count them.");
  std::vector<NodeId> later(most + 1, kNever);
  for (size_t count = 0; count <= most; ++count) {
    const uint32_t low = rules.min > count ? rules.min - static_cast<uint32_t>(count) : 0;
    const uint32_t high =
        rules.max == kUnbounded ? kUnbounded : rules.max - static_cast<uint32_t>(count);
    if (count > 0) {
      later[count] = program.repeat(program.sequence({separator, parts.pair}), low, high);
    } else if (high > 0 && parts.pair != kNever) {
      const NodeId others =
          program.repeat(program.sequence({separator, parts.pair}), low > 0 ? low - 1 : 0,
                         high == kUnbounded ? kUnbounded : high - 1);
      later[0] = program.sequence({parts.pair, others});
      if (low == 0) later[0] = program.optional(later[0]);
    } else {
      later[0] = low == 0 ? kNothing : kNever;
    }
  }
  for (size_t i = size; i-- > 0;) {
    const Property& property = parts.properties[i];
    const NodeId own = program.sequence({property.key, property.value});
    for (size_t count = 0; count <= most; ++count) {
      std::vector<NodeId> ways;
      if (count < most)
        ways.push_back(program.sequence({count > 0 ? separator : kNothing, own, later[count + 1]}));
      if (!property.required) ways.push_back(later[count]);
      later[count] = program.choice(ways);
    }
  }
  return later[0];
}

Result<NodeId> SchemaCompiler::build_object(const Conjunction& items, const Facts& facts) {
  TANDEM_TRY(body, build_members(items, facts, to_.program.literal(comma())));
  return to_.program.sequence({to_.program.literal("{"), body, to_.program.literal("}")});
}

// What stands between the braces.
Result<NodeId> SchemaCompiler::build_members(const Conjunction& items, const Facts& facts,
                                             NodeId separator) {
  TANDEM_TRY(parts, object_parts(items));
  uint32_t required = 0;
  for (const Property& property : parts.properties) {
    if (property.required && property.value == kNever) return kNever;
    required += property.required ? 1 : 0;
  }
  const ObjectRules& rules = facts.object;
  const size_t most = parts.pair == kNever ? parts.properties.size() : SIZE_MAX;
  if (rules.min > rules.max || required > rules.max || rules.min > most) return kNever;
  if (rules.min > required || rules.max < most) return counted_body(parts, rules, separator);
  return object_body(parts, separator);
}

}  // namespace tandem::grammar
