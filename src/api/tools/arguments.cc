#include "api/tools/arguments.h"

#include <algorithm>

#include "api/tools/json_stream.h"

namespace tandem::api {

namespace {

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
