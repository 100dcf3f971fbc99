#include "grammar/argument_types.h"

#include <algorithm>
#include <utility>

#include "base/json_pointer.h"

namespace tandem::grammar {

namespace {

constexpr int kMaxDepth = 16;
constexpr int kMostVisits = 2500;  // of schemas, by one look: those that refer to one another could
                                   // be gone through for ever

unsigned type_bit(std::string_view name) {
  if (name == "string") return ArgumentTypes::kString;
  if (name == "number" || name == "integer") return ArgumentTypes::kNumber;
  if (name == "boolean") return ArgumentTypes::kBoolean;
  if (name == "null") return ArgumentTypes::kNull;
  if (name == "object") return ArgumentTypes::kObject;
  if (name == "array") return ArgumentTypes::kArray;
  return 0;
}

unsigned bit_of(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return ArgumentTypes::kNull;
    case JsonValue::Kind::kBool:
      return ArgumentTypes::kBoolean;
    case JsonValue::Kind::kNumber:
      return ArgumentTypes::kNumber;
    case JsonValue::Kind::kString:
      return ArgumentTypes::kString;
    case JsonValue::Kind::kArray:
      return ArgumentTypes::kArray;
    default:
      return ArgumentTypes::kObject;
  }
}

unsigned types_of(const JsonValue& root, const JsonValue& schema, int depth, int& visits) {
  if (!schema.is_object() || depth > kMaxDepth || ++visits > kMostVisits)
    return ArgumentTypes::kAny;
  unsigned bits = ArgumentTypes::kAny;
  if (const JsonValue* reference = schema.find("$ref"); reference && reference->is_string()) {
    const std::string_view text = reference->as_string();
    const JsonValue* to = text.starts_with('#') ? find_at(root, text.substr(1)) : nullptr;
    if (to != nullptr) bits &= types_of(root, *to, depth + 1, visits);
  }
  if (const JsonValue* type = schema.find("type")) {
    unsigned named = type->is_string() ? type_bit(type->as_string()) : 0;
    for (const JsonValue& one : type->items()) named |= type_bit(one.as_string());
    if (named != 0) bits &= named;
  }
  if (const JsonValue* nullable = schema.find("nullable"); nullable && nullable->as_bool())
    bits |= ArgumentTypes::kNull;
  for (const char* key : {"anyOf", "oneOf"}) {
    const JsonValue* branches = schema.find(key);
    if (branches == nullptr || branches->items().empty()) continue;
    unsigned any = 0;
    for (const JsonValue& branch : branches->items())
      any |= types_of(root, branch, depth + 1, visits);
    bits &= any;
  }
  if (const JsonValue* all = schema.find("allOf")) {
    for (const JsonValue& part : all->items()) bits &= types_of(root, part, depth + 1, visits);
  }
  if (const JsonValue* values = schema.find("enum"); values && !values->items().empty()) {
    unsigned listed = 0;
    for (const JsonValue& value : values->items()) listed |= bit_of(value);
    bits &= listed;
  }
  if (const JsonValue* value = schema.find("const")) bits &= bit_of(*value);
  return bits == 0 ? ArgumentTypes::kAny : bits;
}

}  // namespace

bool declares(const JsonValue* parameters, std::string_view key) {
  const JsonValue* properties = parameters == nullptr ? nullptr : parameters->find("properties");
  return properties != nullptr && properties->find(key) != nullptr;
}

ArgumentTypes argument_types(const JsonValue* parameters, std::string_view key) {
  if (!declares(parameters, key)) return {};
  int visits = 0;
  const unsigned bits =
      types_of(*parameters, *parameters->find("properties")->find(key), 0, visits);
  return {visits > kMostVisits ? ArgumentTypes::kAny : bits};
}

JsonValue simple_parameters(const JsonValue& parameters, bool words) {
  static constexpr std::pair<unsigned, const char*> kNames[] = {
      {ArgumentTypes::kString, "string"},   {ArgumentTypes::kNumber, "number"},
      {ArgumentTypes::kBoolean, "boolean"}, {ArgumentTypes::kNull, "null"},
      {ArgumentTypes::kObject, "object"},   {ArgumentTypes::kArray, "array"}};
  const auto fits = [&](std::string_view name) {
    return !words || (!name.empty() && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    }));
  };
  JsonValue::Object properties;
  const JsonValue* declared = parameters.find("properties");
  if (declared != nullptr && declared->is_object()) {
    for (const auto& [name, unused] : declared->members()) {
      if (!fits(name)) continue;
      const unsigned bits = argument_types(&parameters, name).bits;
      JsonValue types = JsonValue::array();
      for (const auto& [bit, type] : kNames) {
        if ((bits & bit) != 0) types.push_back(JsonValue::string(type));
      }
      properties.emplace_back(name, bits == ArgumentTypes::kAny
                                        ? JsonValue::object()
                                        : JsonValue::object({{"type", std::move(types)}}));
    }
  }
  JsonValue required = JsonValue::array();
  const JsonValue* names = parameters.find("required");
  if (names != nullptr && names->is_array()) {
    for (const JsonValue& name : names->items()) {
      if (name.is_string() && fits(name.as_string())) required.push_back(name);
    }
  }
  return JsonValue::object({{"type", JsonValue::string("object")},
                            {"properties", JsonValue::object(std::move(properties))},
                            {"required", std::move(required)}});
}

}  // namespace tandem::grammar
