#include "api/tools/arguments.h"

#include <algorithm>

#include "api/tools/json_stream.h"

namespace tandem::api {

namespace {

constexpr int kMaxDepth = 16;

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

// "#/$defs/name"; escapes of pointers included.
const JsonValue* follow(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  reference.remove_prefix(1);
  const JsonValue* at = &root;
  while (!reference.empty() && at != nullptr) {
    if (reference[0] != '/') return nullptr;
    reference.remove_prefix(1);
    const size_t end = std::min(reference.find('/'), reference.size());
    std::string key(reference.substr(0, end));
    for (size_t i = key.find('~'); i != std::string::npos; i = key.find('~', i + 1))
      key.replace(i, 2, key.substr(i, 2) == "~1" ? "/" : "~");
    reference.remove_prefix(end);
    at = at->find(key);
  }
  return at;
}

unsigned types_of(const JsonValue& root, const JsonValue& schema, int depth) {
  if (!schema.is_object() || depth > kMaxDepth) return ArgumentTypes::kAny;
  unsigned bits = ArgumentTypes::kAny;
  if (const JsonValue* reference = schema.find("$ref"); reference && reference->is_string()) {
    if (const JsonValue* to = follow(root, reference->as_string()))
      bits &= types_of(root, *to, depth + 1);
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
    for (const JsonValue& branch : branches->items()) any |= types_of(root, branch, depth + 1);
    bits &= any;
  }
  if (const JsonValue* all = schema.find("allOf")) {
    for (const JsonValue& part : all->items()) bits &= types_of(root, part, depth + 1);
  }
  if (const JsonValue* values = schema.find("enum"); values && !values->items().empty()) {
    unsigned listed = 0;
    for (const JsonValue& value : values->items()) listed |= bit_of(value);
    bits &= listed;
  }
  if (const JsonValue* value = schema.find("const")) bits &= bit_of(*value);
  return bits == 0 ? ArgumentTypes::kAny : bits;
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \n\r\t";
  const size_t from = text.find_first_not_of(kSpaces);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kSpaces) - from + 1);
}

// Canonical JSON of a text that is one whole value; empty: it is none.
std::string read_json(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  JsonStream stream;
  std::string out;
  size_t used = 0;
  stream.push(text, used, out);
  if (stream.state() == JsonStream::State::kMore) stream.finish(out);
  return stream.state() == JsonStream::State::kDone && used == text.size() ? out : std::string();
}

unsigned bit_of_json(const std::string& json) {
  switch (json[0]) {
    case '"':
      return ArgumentTypes::kString;
    case '{':
      return ArgumentTypes::kObject;
    case '[':
      return ArgumentTypes::kArray;
    case 't':
    case 'f':
      return ArgumentTypes::kBoolean;
    case 'n':
      return ArgumentTypes::kNull;
    default:
      return ArgumentTypes::kNumber;
  }
}

}  // namespace

ToolTable::ToolTable(const JsonValue& tools) {
  for (const JsonValue& tool : tools.items()) {
    const JsonValue* function = tool.find("function");
    if (function == nullptr) continue;
    const JsonValue* name = function->find("name");
    if (name == nullptr || !name->is_string()) continue;
    tools_.push_back({name->as_string(), function->find("parameters")});
  }
}

bool ToolTable::knows(std::string_view name) const {
  return std::ranges::find(tools_, name, &Tool::name) != tools_.end();
}

const JsonValue* ToolTable::parameters(std::string_view name) const {
  const auto found = std::ranges::find(tools_, name, &Tool::name);
  return found == tools_.end() ? nullptr : found->parameters;
}

std::vector<std::string> ToolTable::names() const {
  std::vector<std::string> out;
  out.reserve(tools_.size());
  for (const Tool& tool : tools_) out.push_back(tool.name);
  return out;
}

bool declares(const JsonValue* parameters, std::string_view key) {
  const JsonValue* properties = parameters == nullptr ? nullptr : parameters->find("properties");
  return properties != nullptr && properties->find(key) != nullptr;
}

ArgumentTypes argument_types(const JsonValue* parameters, std::string_view key) {
  if (!declares(parameters, key)) return {};
  return {types_of(*parameters, *parameters->find("properties")->find(key), 0)};
}

std::string argument_json(std::string_view raw, ArgumentTypes types) {
  if (!types.only_string()) {
    const std::string json = read_json(stripped(raw));
    // A quoted text is JSON's string only where nothing says that raw text is meant.
    const bool quoted = !json.empty() && json[0] == '"';
    const bool fits = !json.empty() && (types.bits & bit_of_json(json)) != 0;
    if (fits && (!quoted || types.bits == ArgumentTypes::kAny)) return json;
    // The schema wants another type, but this is what the model wrote.
    if (!json.empty() && (types.bits & ArgumentTypes::kString) == 0) return json;
  }
  std::string out = "\"";
  append_json_text(out, raw);
  return out += '"';
}

}  // namespace tandem::api
