// Keywords to facts: what each schema of a conjunction adds.
#include <algorithm>

#include "grammar/schema_compiler.h"

namespace tandem::grammar {
namespace {

struct TypeName {
  std::string_view name;
  uint32_t bits;
};
constexpr TypeName kTypes[] = {{"null", 1},    {"boolean", 2},  {"object", 4}, {"array", 8},
                               {"string", 16}, {"integer", 32}, {"number", 96}};

void raise(std::optional<Bound>& to, Bound bound, int direction) {
  if (!to) {
    to = std::move(bound);
    return;
  }
  const int order = compare(bound.value, to->value) * direction;
  if (order > 0 || (order == 0 && bound.exclusive)) to = std::move(bound);
}

}  // namespace

Result<SchemaCompiler::Facts> SchemaCompiler::gather(const Conjunction& items) {
  Facts facts;
  for (const Item& item : items) {
    const JsonValue& schema = *item.schema;
    TANDEM_CHECK(gather_type(schema, facts));
    TANDEM_CHECK(gather_number(schema, facts));
    TANDEM_CHECK(gather_string(schema, facts));
    TANDEM_CHECK(gather_sizes(schema, facts));
    if (const JsonValue* values = schema.find("enum")) {
      if (!values->is_array()) return invalid(schema, "enum", "must be a list of values");
      facts.enums.push_back(values);
      facts.is_const.push_back(false);
    }
    if (const JsonValue* value = schema.find("const")) {
      facts.enums.push_back(value);
      facts.is_const.push_back(true);
    }
  }
  return facts;
}

Status SchemaCompiler::gather_type(const JsonValue& schema, Facts& facts) const {
  const JsonValue* type = schema.find("type");
  if (type == nullptr) return {};
  uint32_t bits = 0;
  const auto add = [&](const JsonValue& name) {
    const auto* const at = name.is_string()
                               ? std::ranges::find(kTypes, name.as_string(), &TypeName::name)
                               : std::end(kTypes);
    if (at == std::end(kTypes)) return false;
    bits |= at->bits;
    return true;
  };
  bool known = true;
  if (type->is_array()) {
    for (const JsonValue& name : type->items()) known = known && add(name);
  } else {
    known = add(*type);
  }
  if (!known)
    return invalid(schema, "type", "must be the name of a JSON type, or a list of such names");
  facts.types &= bits;
  return {};
}

Status SchemaCompiler::gather_number(const JsonValue& schema, Facts& facts) const {
  struct Keyword {
    const char* name;
    bool lowest;
    bool exclusive;
  };
  static constexpr Keyword kKeywords[] = {{"minimum", true, false},
                                          {"exclusiveMinimum", true, true},
                                          {"maximum", false, false},
                                          {"exclusiveMaximum", false, true}};
  for (const Keyword& keyword : kKeywords) {
    const JsonValue* value = schema.find(keyword.name);
    if (value == nullptr) continue;
    if (keyword.exclusive && value->is_bool()) {  // draft 4
      const JsonValue* plain = schema.find(keyword.lowest ? "minimum" : "maximum");
      const auto bound =
          plain != nullptr && plain->is_number() ? parse_decimal(plain->as_string()) : std::nullopt;
      if (value->as_bool() && bound)
        raise(keyword.lowest ? facts.number.lowest : facts.number.highest, {*bound, true},
              keyword.lowest ? 1 : -1);
      continue;
    }
    const auto bound = value->is_number() ? parse_decimal(value->as_string()) : std::nullopt;
    if (!bound) return invalid(schema, keyword.name, "must be a number of reasonable size");
    raise(keyword.lowest ? facts.number.lowest : facts.number.highest, {*bound, keyword.exclusive},
          keyword.lowest ? 1 : -1);
  }
  if (const JsonValue* step = schema.find("multipleOf")) {
    const auto value = step->is_number() ? parse_decimal(step->as_string()) : std::nullopt;
    if (!step->is_number() || (value && (value->negative || value->is_zero())))
      return invalid(schema, "multipleOf", "must be a number above zero");
    if (!value) return refused(schema, "multipleOf", "the step is too fine or too large");
    facts.number.multiples.push_back(*value);
  }
  return {};
}

Status SchemaCompiler::read_size(const JsonValue& schema, const char* keyword, uint32_t& out,
                                 bool least) const {
  const JsonValue* value = schema.find(keyword);
  if (value == nullptr) return {};
  const auto decimal = value->is_number() ? parse_decimal(value->as_string()) : std::nullopt;
  if (!decimal || decimal->negative || !decimal->is_integer())
    return invalid(schema, keyword, "must be a whole number, 0 or more");
  constexpr uint32_t kMost = 1'000'000'000;
  const uint32_t size =
      decimal->whole.size() > 9 ? kMost : static_cast<uint32_t>(std::stoul(decimal->whole));
  if (least) {
    if (size >= kMost) return refused(schema, keyword, "the number is too large");
    out = std::max(out, size);
  } else {
    out = std::min(out, size);
  }
  return {};
}

Status SchemaCompiler::gather_sizes(const JsonValue& schema, Facts& facts) const {
  TANDEM_CHECK(read_size(schema, "minItems", facts.array.min, true));
  TANDEM_CHECK(read_size(schema, "maxItems", facts.array.max, false));
  TANDEM_CHECK(read_size(schema, "minProperties", facts.object.min, true));
  return read_size(schema, "maxProperties", facts.object.max, false);
}

Result<RegexId> SchemaCompiler::pattern_regex(const JsonValue& schema, std::string_view keyword,
                                              const std::string& text, Spelling spelling) {
  const auto [at, fresh] = patterns_.emplace(std::pair{text, spelling}, kNoMatch);
  if (!fresh) return at->second;
  auto pattern = parse_pattern(text);
  if (!pattern) {
    patterns_.erase(at);
    Error error = pattern.error();
    error.pointer = source_.pointer(schema, keyword);
    return tl::unexpected(std::move(error));
  }
  at->second = match_within(regex(), *pattern, spelling);
  return at->second;
}

Status SchemaCompiler::gather_string(const JsonValue& schema, Facts& facts) {
  StringRules& rules = facts.string;
  TANDEM_CHECK(read_size(schema, "minLength", rules.min, true));
  TANDEM_CHECK(read_size(schema, "maxLength", rules.max, false));
  const auto add = [&](const char* keyword, const std::string& text) -> Status {
    TANDEM_CHECK(pattern_regex(schema, keyword, text, Spelling::kJson));
    rules.parts.push_back({&schema, keyword, text});
    return {};
  };
  if (const JsonValue* pattern = schema.find("pattern")) {
    if (!pattern->is_string()) return invalid(schema, "pattern", "must be a text");
    TANDEM_CHECK(add("pattern", pattern->as_string()));
  }
  if (const JsonValue* format = schema.find("format")) {
    if (!format->is_string()) return invalid(schema, "format", "must be a text");
    const char* pattern = format_pattern(format->as_string());
    if (pattern != nullptr) {
      TANDEM_CHECK(add("format", pattern));
      // RFC 1123 and 5321 bound them; no pattern can.
      if (format->as_string() == "hostname") rules.max = std::min(rules.max, 253U);
    } else if (noted_.insert(format).second) {
      to_.notes.push_back(source_.pointer(schema, "format") +
                          " is not enforced: the format is not known here.");
    }
  }
  return {};
}

// Between the quotes.
Result<RegexId> SchemaCompiler::content_regex(const StringRules& rules, Spelling spelling) {
  if (rules.min > rules.max) return kNoMatch;
  std::vector<RegexId> parts;
  for (const StringRules::Part& part : rules.parts) {
    TANDEM_TRY(one, pattern_regex(*part.schema, part.keyword, part.pattern, spelling));
    parts.push_back(one);
  }
  if (parts.empty() || rules.min > 0 || rules.max != kUnbounded)
    parts.push_back(regex().repeat(any_character(regex(), spelling), rules.min, rules.max));
  return regex().both(parts);
}

// The texts that a conjunction allows, whatever else it allows.
Result<RegexId> SchemaCompiler::string_content(const Conjunction& conjunction, Spelling spelling) {
  TANDEM_CHECK(check_depth(conjunction));
  const Deeper deeper(depth_);
  Conjunction items;
  TANDEM_TRY(possible, flatten(conjunction, items));
  if (!possible) return kNoMatch;
  TANDEM_TRY(split, find_disjunction(items));
  std::vector<RegexId> parts;
  if (split) {
    const Branches branches = take_apart(items, *split);
    for (const Conjunction& branch : branches.all) {
      TANDEM_TRY(part, string_content(branch, spelling));
      parts.push_back(part);
    }
    if (split->bit == kOneOf) TANDEM_CHECK(check_disjoint(branches.rest, *split, branches.all));
    return regex().either(parts);
  }
  TANDEM_TRY(facts, gather(items));
  if ((facts.types & kString) == 0) return kNoMatch;
  if (facts.enums.empty()) return content_regex(facts.string, spelling);
  TANDEM_TRY(values, allowed_values(items, facts));
  std::vector<std::string> texts;
  for (const JsonValue* value : values) {
    if (value->is_string()) texts.push_back(spell(value->as_string(), spelling));
  }
  return regex().literals(std::move(texts));
}

}  // namespace tandem::grammar
