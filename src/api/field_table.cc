#include "api/field_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxFields = 1024;  // each look-up passes over all of them
constexpr size_t kMaxShownName = 128;

std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

tl::unexpected<Error> refuse(const char* code, const std::string& sentence,
                             const std::string& pointer) {
  return make_error(400, code, sentence, pointer);
}

const char* kind_name(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return "a boolean";
    case JsonValue::Kind::kNumber:
      return value.as_integer() ? "an integer" : "a number";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kArray:
      return "an array";
    default:
      return "an object";
  }
}

tl::unexpected<Error> wrong_type(const Field& field, const JsonValue& value,
                                 const std::string& pointer, const char* expected) {
  return refuse("invalid_type",
                quoted(field.name) + " must be " + expected + ", not " + kind_name(value), pointer);
}

std::string number_text(double value) { return JsonValue::real(value).as_string(); }

// The neutral values and the kinds of unused fields compare as JSON values, numbers by their value.
bool same(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return a == b;
}

char kind_letter(const JsonValue& value) {
  constexpr char kLetters[] = {'0', 'b', 'n', 's', 'a', 'o'};
  return kLetters[static_cast<size_t>(value.kind())];
}

const char* letter_name(char letter) {
  switch (letter) {
    case 'b':
      return "boolean";
    case 'n':
      return "number";
    case 's':
      return "string";
    case 'a':
      return "array";
    default:
      return "object";
  }
}

struct Reader {
  const Field& field;
  const JsonValue& value;
  const std::string& pointer;
  Draft& draft;

  Status operator()(const Flag& rule) const {
    if (!value.is_bool()) return wrong_type(field, value, pointer, "a boolean");
    rule.at(draft) = value.as_bool();
    return {};
  }

  Status operator()(const Integer& rule) const {
    const auto number = value.is_number() ? value.as_integer() : std::nullopt;
    const auto real = value.is_number() ? value.as_double() : std::nullopt;
    // Too large for 64 bits is still an integer to the client.
    const bool whole = number || (real && std::abs(*real) >= 9e18 && std::isfinite(*real));
    if (!whole) return wrong_type(field, value, pointer, "an integer");
    const auto low = number ? *number < rule.low : *real < 0;
    const auto high = number ? *number > rule.high : *real > 0;
    if (low || high) {
      return refuse(low ? "integer_below_min_value" : "integer_above_max_value",
                    quoted(field.name) + " must be an integer from " + std::to_string(rule.low) +
                        " to " + std::to_string(rule.high),
                    pointer);
    }
    rule.put(draft, *number);
    return {};
  }

  Status operator()(const Real& rule) const {
    if (!value.is_number()) return wrong_type(field, value, pointer, "a number");
    // Text like 1e999 has no double: it is above every range.
    const double number = value.as_double().value_or(HUGE_VAL);
    const bool negative = value.as_string().starts_with('-');
    const bool low =
        std::isfinite(number) ? number < rule.low || (rule.above && number == rule.low) : negative;
    const bool high = std::isfinite(number) ? number > rule.high : !negative;
    if (low || high) {
      return refuse(low ? "decimal_below_min_value" : "decimal_above_max_value",
                    quoted(field.name) + " must be a number " + (rule.above ? "above " : "from ") +
                        number_text(rule.low) + (rule.above ? ", at most " : " to ") +
                        number_text(rule.high),
                    pointer);
    }
    rule.at(draft) = static_cast<float>(number);
    return {};
  }

  Status operator()(const Text& rule) const {
    if (!value.is_string()) return wrong_type(field, value, pointer, "a string");
    if (value.as_string().size() > rule.limit) {
      return refuse("string_above_max_length",
                    quoted(field.name) + " is longer than " + std::to_string(rule.limit) + " bytes",
                    pointer);
    }
    rule.at(draft) = value.as_string();
    return {};
  }

  Status operator()(const Words& rule) const {
    if (!value.is_string()) return wrong_type(field, value, pointer, "a string");
    if (std::find(rule.words.begin(), rule.words.end(), value.as_string()) == rule.words.end()) {
      std::string allowed;
      for (const std::string_view word : rule.words)
        allowed += (allowed.empty() ? "'" : ", '") + std::string(word) + "'";
      return refuse("invalid_value", quoted(field.name) + " must be one of " + allowed, pointer);
    }
    rule.put(draft, value.as_string());
    return {};
  }

  Status operator()(const Group& rule) const {
    if (!value.is_object()) return wrong_type(field, value, pointer, "an object");
    if (rule.seen != nullptr) rule.seen(draft);
    return read_fields(rule.fields, value, pointer, draft);
  }

  Status operator()(const Special& rule) const { return rule.read(value, pointer, draft); }

  Status operator()(const Unused& rule) const {
    const std::string_view kinds = rule.kinds;
    if (kinds.find(kind_letter(value)) != std::string_view::npos) return {};
    std::string expected;
    for (const char letter : kinds)
      expected += (expected.empty() ? "of type " : " or ") + std::string(letter_name(letter));
    return wrong_type(field, value, pointer, expected.c_str());
  }

  Status operator()(const Refused& rule) const {
    const JsonValue neutral = *parse_json(rule.neutral);
    for (const JsonValue& allowed : neutral.items()) {
      if (same(value, allowed)) return {};
    }
    return refuse("unsupported_parameter",
                  quoted(field.name) + " is not supported here; leave it out (" + field.help + ")",
                  pointer);
  }
};

JsonValue type_or_null(std::initializer_list<const char*> types) {
  JsonValue list = JsonValue::array();
  for (const char* type : types) list.push_back(JsonValue::string(type));
  list.push_back(JsonValue::string("null"));
  return JsonValue::object({{"type", std::move(list)}});
}

struct Describer {
  JsonValue operator()(const Flag&) const { return type_or_null({"boolean"}); }

  JsonValue operator()(const Integer& rule) const {
    JsonValue schema = type_or_null({"integer"});
    schema.set("minimum", JsonValue::integer(rule.low));
    schema.set("maximum", JsonValue::integer(rule.high));
    return schema;
  }

  JsonValue operator()(const Real& rule) const {
    JsonValue schema = type_or_null({"number"});
    schema.set(rule.above ? "exclusiveMinimum" : "minimum", JsonValue::real(rule.low));
    schema.set("maximum", JsonValue::real(rule.high));
    return schema;
  }

  JsonValue operator()(const Text& rule) const {
    JsonValue schema = type_or_null({"string"});
    schema.set("maxLength", JsonValue::integer(static_cast<int64_t>(rule.limit)));
    return schema;
  }

  JsonValue operator()(const Words& rule) const {
    JsonValue words = JsonValue::array();
    for (const std::string_view word : rule.words)
      words.push_back(JsonValue::string(std::string(word)));
    words.push_back(JsonValue());
    return JsonValue::object({{"enum", std::move(words)}});
  }

  JsonValue operator()(const Group& rule) const {
    JsonValue schema = type_or_null({"object"});
    JsonValue required = JsonValue::array();
    schema.set("properties", fields_schema(rule.fields, required));
    if (!required.items().empty()) schema.set("required", std::move(required));
    return schema;
  }

  JsonValue operator()(const Special& rule) const { return *parse_json(rule.schema); }

  JsonValue operator()(const Unused& rule) const {
    JsonValue list = JsonValue::array();
    for (const char letter : std::string_view(rule.kinds))
      list.push_back(JsonValue::string(letter_name(letter)));
    list.push_back(JsonValue::string("null"));
    return JsonValue::object({{"type", std::move(list)}});
  }

  JsonValue operator()(const Refused& rule) const {
    JsonValue values = *parse_json(rule.neutral);
    values.push_back(JsonValue());
    return JsonValue::object({{"enum", std::move(values)}});
  }
};

}  // namespace

Status read_fields(std::span<const Field> fields, const JsonValue& object,
                   const std::string& pointer, Draft& draft) {
  TANDEM_CHECK(check_keys(object, pointer));
  for (const Field& field : fields) {
    const JsonValue* value = object.find(field.name);
    const std::string at = pointer_to(pointer, field.name);
    if (value == nullptr || value->is_null()) {
      if (!field.required) continue;
      return refuse("missing_required_parameter", quoted(field.name) + " is missing", at);
    }
    TANDEM_CHECK(std::visit(Reader{field, *value, at, draft}, field.rule));
  }
  return {};
}

JsonValue fields_schema(std::span<const Field> fields, JsonValue& required) {
  JsonValue properties = JsonValue::object();
  for (const Field& field : fields) {
    JsonValue schema = std::visit(Describer{}, field.rule);
    std::string help = field.help;
    if (std::holds_alternative<Unused>(field.rule)) help += " (accepted, without effect)";
    if (std::holds_alternative<Refused>(field.rule)) help += " (not supported: any use is refused)";
    schema.set("description", JsonValue::string(std::move(help)));
    if (field.absent != nullptr) schema.set("default", *parse_json(field.absent));
    if (field.required) required.push_back(JsonValue::string(field.name));
    properties.set(field.name, std::move(schema));
  }
  return properties;
}

Status check_keys(const JsonValue& object, const std::string& pointer) {
  const auto& members = object.members();
  if (members.size() > kMaxFields) {
    return invalid_request(
        "an object of the body has more than " + std::to_string(kMaxFields) + " fields", pointer);
  }
  std::vector<std::string_view> keys;
  keys.reserve(members.size());
  for (const JsonValue::Member& member : members) keys.emplace_back(member.first);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return {};
  const std::string key(twice->substr(0, kMaxShownName));
  return refuse("duplicate_parameter", quoted(key) + " is given twice", pointer_to(pointer, key));
}

}  // namespace tandem::api
