// enum and const: which of the values satisfy everything else, and how they are spelled.
#include <algorithm>

#include "grammar/schema_compiler.h"

namespace tandem::grammar {
namespace {

// The same text for values that are equal as JSON Schema has it: numbers by value, objects in any
// order.
std::string key_of(const JsonValue& value) {
  std::string out;
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.as_bool() ? "true" : "false";
    case JsonValue::Kind::kNumber: {
      const auto decimal = parse_decimal(value.as_string());
      return decimal ? decimal->text() : value.as_string();
    }
    case JsonValue::Kind::kString:
      append_json_string(out, value.as_string());
      return out;
    case JsonValue::Kind::kArray:
      out = "[";
      for (const JsonValue& item : value.items()) out += key_of(item) + ",";
      return out + "]";
    case JsonValue::Kind::kObject: {
      std::vector<std::string> members;
      for (const auto& [name, member] : value.members()) {
        append_json_string(members.emplace_back(), name);
        members.back() += ":" + key_of(member);
      }
      std::ranges::sort(members);
      out = "{";
      for (const std::string& member : members) out += member + ",";
      return out + "}";
    }
  }
  return out;
}

}  // namespace

std::string SchemaCompiler::text_of(const JsonValue& value) const {
  std::string out;
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return word("null");
    case JsonValue::Kind::kBool:
      return word(value.as_bool() ? "true" : "false");
    case JsonValue::Kind::kNumber: {
      const auto decimal = parse_decimal(value.as_string());
      const bool plain = decimal && decimal->whole.size() <= kMostDigits &&
                         decimal->fraction.size() <= kMostDigits;
      return plain ? decimal->text() : value.as_string();
    }
    case JsonValue::Kind::kString:
      append_json_string(out, value.as_string());
      return out;
    case JsonValue::Kind::kArray:
      for (const JsonValue& item : value.items())
        out += (out.empty() ? "[" : comma()) + text_of(item);
      return (out.empty() ? "[" : out) + "]";
    case JsonValue::Kind::kObject:
      for (const auto& [key, member] : value.members()) {
        out += out.empty() ? "{" : comma();
        append_json_string(out, key);
        out += colon() + text_of(member);
      }
      return (out.empty() ? "{" : out) + "}";
  }
  return out;
}

Result<std::vector<const JsonValue*>> SchemaCompiler::allowed_values(const Conjunction& items,
                                                                     const Facts& facts) {
  std::vector<const JsonValue*> candidates;
  if (facts.is_const.front()) {
    candidates.push_back(facts.enums.front());
  } else {
    for (const JsonValue& value : facts.enums.front()->items()) candidates.push_back(&value);
  }
  std::vector<const JsonValue*> out;
  for (const JsonValue* value : candidates) {
    TANDEM_TRY(allowed, satisfies_facts(*value, items));
    if (allowed) out.push_back(value);
  }
  return out;
}

Result<bool> SchemaCompiler::satisfies(const JsonValue& value, const Conjunction& conjunction) {
  TANDEM_CHECK(check_depth(conjunction));
  const Deeper deeper(depth_);
  Conjunction items;
  TANDEM_TRY(possible, flatten(conjunction, items));
  if (!possible) return false;
  TANDEM_TRY(split, find_disjunction(items));
  if (!split) return satisfies_facts(value, items);
  const Branches branches = take_apart(items, *split);
  size_t holds = 0;
  for (const Conjunction& branch : branches.all) {
    TANDEM_TRY(one, satisfies(value, branch));
    holds += one ? 1 : 0;
  }
  if (split->bit == kAnyOf) return holds > 0;
  TANDEM_CHECK(check_disjoint(branches.rest, *split, branches.all));
  return holds > 0;
}

Result<bool> SchemaCompiler::satisfies_facts(const JsonValue& value, const Conjunction& items) {
  TANDEM_TRY(facts, gather(items));
  for (size_t i = 0; i < facts.enums.size(); ++i) {
    const JsonValue& allowed = *facts.enums[i];
    auto& keys = enum_keys_[&allowed];
    if (keys.empty()) {
      if (facts.is_const[i]) {
        keys.insert(key_of(allowed));
      } else {
        for (const JsonValue& one : allowed.items()) keys.insert(key_of(one));
      }
    }
    if (!keys.contains(key_of(value))) return false;
  }
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return (facts.types & kNull) != 0;
    case JsonValue::Kind::kBool:
      return (facts.types & kBool) != 0;
    case JsonValue::Kind::kNumber: {
      const auto decimal = parse_decimal(value.as_string());
      if (!decimal) return false;
      return (facts.types & (decimal->is_integer() ? kInteger : kFraction)) != 0 &&
             obeys(*decimal, facts.number);
    }
    case JsonValue::Kind::kString: {
      if ((facts.types & kString) == 0) return false;
      TANDEM_TRY(content, content_regex(facts.string, Spelling::kUtf8));
      return regex().matches(content, value.as_string());
    }
    case JsonValue::Kind::kArray:
      return satisfies_array(value, items, facts);
    case JsonValue::Kind::kObject:
      return satisfies_object(value, items, facts);
  }
  return false;
}

Result<bool> SchemaCompiler::satisfies_array(const JsonValue& value, const Conjunction& items,
                                             const Facts& facts) {
  const size_t size = value.items().size();
  if ((facts.types & kArray) == 0 || size < facts.array.min || size > facts.array.max) return false;
  for (size_t i = 0; i < size; ++i) {
    TANDEM_TRY(schema, element(items, i));
    TANDEM_TRY(allowed, satisfies(value.items()[i], schema));
    if (!allowed) return false;
  }
  return true;
}

Result<bool> SchemaCompiler::satisfies_object(const JsonValue& value, const Conjunction& items,
                                              const Facts& facts) {
  const size_t size = value.members().size();
  if ((facts.types & kObject) == 0 || size < facts.object.min || size > facts.object.max)
    return false;
  for (const Item& item : items) {
    const JsonValue* required = item.schema->find("required");
    if (required == nullptr) continue;
    for (const JsonValue& name : required->items()) {
      if (value.find(name.as_string()) == nullptr) return false;
    }
  }
  for (const auto& [name, member] : value.members()) {
    std::set<const JsonValue*> matched;
    for (const Item& item : items) {
      const JsonValue* patterns = item.schema->find("patternProperties");
      if (patterns == nullptr) continue;
      for (const auto& [pattern, schema] : patterns->members()) {
        TANDEM_TRY(matches, matches_pattern(*item.schema, pattern, name));
        if (matches) matched.insert(&schema);
      }
    }
    TANDEM_TRY(schema, property(items, &name, matched));
    TANDEM_TRY(allowed, satisfies(member, schema));
    if (!allowed) return false;
    for (const Item& item : items) {
      const JsonValue* names = item.schema->find("propertyNames");
      if (names == nullptr) continue;
      TANDEM_TRY(fits, satisfies(JsonValue::string(name), {child(*names)}));
      if (!fits) return false;
    }
  }
  return true;
}

}  // namespace tandem::grammar
