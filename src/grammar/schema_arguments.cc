// Arguments of calls as families of models write them: values in Python's or Gemma's notation, and
// arguments that stand one by one between tags, strings among them as raw text.
//
// The hard part is what a reader will make of raw text. A text in a place where the schema allows a
// number too would be read as that number: such texts are kept out of the strings, so that what is
// written is what will be read.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "grammar/argument_types.h"
#include "grammar/schema_compiler.h"

namespace tandem::grammar {
namespace {

// Names that every notation writes as they are.
constexpr std::string_view kNotPlain = "<>\"'&:={}[](),\\";

bool is_plain(std::string_view name) {
  return !name.empty() && name.front() != ' ' && name.back() != ' ' &&
         std::ranges::none_of(name, [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || kNotPlain.find(c) != std::string::npos;
         });
}

bool is_identifier(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::string escaped(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// What a reader takes for JSON of a type, white space around it included.
struct Reading {
  unsigned type;
  const char* pattern;
};
constexpr Reading kReadings[] = {
    {ArgumentTypes::kNumber, "[ \\n\\r\\t]*[-+.0-9][-+.0-9eE]*[ \\n\\r\\t]*"},
    {ArgumentTypes::kBoolean, "[ \\n\\r\\t]*([tT]rue|[fF]alse)[ \\n\\r\\t]*"},
    {ArgumentTypes::kNull, "[ \\n\\r\\t]*(null|None)[ \\n\\r\\t]*"},
    {ArgumentTypes::kObject, "[ \\n\\r\\t]*\\{[\\s\\S]*"},
    {ArgumentTypes::kArray, "[ \\n\\r\\t]*\\[[\\s\\S]*"},
};

// Schemas of one type each, to narrow others with; in the order of ArgumentsLayout::Type.
const std::array<JsonValue, 6>& type_schemas() {
  static const std::array<JsonValue, 6> kSchemas = [] {
    std::array<JsonValue, 6> out;
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = JsonValue::object({{"type", JsonValue::string(kArgumentTypeNames[i])}});
    return out;
  }();
  return kSchemas;
}

}  // namespace

const char* SchemaCompiler::word(const char* json) const {
  if (!python()) return json;
  if (std::strcmp(json, "true") == 0) return "True";
  return std::strcmp(json, "false") == 0 ? "False" : "None";
}

// `content` where no marker of the notation stands in it.
RegexId SchemaCompiler::without_never(RegexId content, Spelling spelling) {
  return without_markers(regex(), content, to_.notation.never, spelling);
}

NodeId SchemaCompiler::string_node(RegexId content) {
  Program& program = to_.program;
  const RegexId clean = without_never(content, text_spelling());
  if (gemma()) {
    const NodeId inside = program.lexeme(clean);
    return inside == kNever ? kNever
                            : program.sequence({to_.notation.quote, inside, to_.notation.quote});
  }
  const RegexId quote = regex().literal("\"");
  return program.lexeme(regex().concat({quote, clean, quote}));
}

// A value of enum or const in Gemma's notation.
NodeId SchemaCompiler::value_node(const JsonValue& value) {
  Program& program = to_.program;
  std::vector<NodeId> parts;
  switch (value.kind()) {
    case JsonValue::Kind::kString:
      return string_node(regex().literal(value.as_string()));
    case JsonValue::Kind::kArray:
      for (const JsonValue& item : value.items()) {
        parts.push_back(program.literal(parts.empty() ? "[" : ","));
        parts.push_back(value_node(item));
      }
      parts.push_back(program.literal(parts.empty() ? "[]" : "]"));
      return program.sequence(parts);
    case JsonValue::Kind::kObject:
      for (const auto& [name, member] : value.members()) {
        parts.push_back(program.literal(parts.empty() ? "{" : ","));
        parts.push_back(is_plain(name) ? program.literal(name)
                                       : string_node(regex().literal(name)));
        parts.push_back(program.literal(":"));
        parts.push_back(value_node(member));
      }
      parts.push_back(program.literal(parts.empty() ? "{}" : "}"));
      return program.sequence(parts);
    default:
      return program.literal(text_of(value));
  }
}

// The name of a property and what stands between it and its value (for arguments that is said by
// the value's type).
Result<NodeId> SchemaCompiler::property_key(const Conjunction& items, const std::string& name) {
  Program& program = to_.program;
  if (layout_ != nullptr) {
    const bool fits =
        layout_->identifiers ? is_identifier(name) : is_plain(name) || layout_->escaped_names;
    if (!fits) {
      return make_error(400, "unsupported_grammar",
                        "A property's name cannot be written as this model writes calls.",
                        source_.pointer(*items.front().schema, "properties"));
    }
    return program.sequence({layout_->open, program.literal(escaped(name))});
  }
  if (gemma()) {
    const NodeId bare = program.literal(name + ":");
    return is_plain(name)
               ? bare
               : program.sequence({string_node(regex().literal(name)), program.literal(":")});
  }
  std::string key;
  append_json_string(key, name);
  return program.literal(key + colon());
}

// The same of a name that no schema knows.
NodeId SchemaCompiler::other_key(RegexId names) {
  Program& program = to_.program;
  if (layout_ == nullptr && !gemma()) {
    return program.lexeme(
        regex().concat({regex().literal("\""), names, regex().literal("\"" + colon())}));
  }
  // Only words: there are enough of them.
  const auto words = parse_pattern("[A-Za-z_][A-Za-z0-9_]{0,63}");
  const auto word =
      words ? match_whole(regex(), *words, Spelling::kUtf8) : Result<RegexId>(kNoMatch);
  const RegexId key = regex().both({names, word.value_or(kNoMatch)});
  if (layout_ == nullptr) return program.lexeme(regex().concat(key, regex().literal(":")));
  const NodeId name = program.lexeme(key);
  return name == kNever ? kNever : program.sequence({layout_->open, name});
}

// `name`: null for a name that no schema knows.
Result<NodeId> SchemaCompiler::property_value(const Conjunction& schema, const std::string* name) {
  const ArgumentsLayout* layout = layout_;
  if (layout == nullptr) return compile(schema);
  layout_ = nullptr;  // what is inside a value is in the notation of values
  Program& program = to_.program;
  const unsigned bits =
      name == nullptr ? ArgumentTypes::kAny : argument_types(&source_.root(), *name).bits;
  std::vector<NodeId> ways;
  const auto narrowed = [&](size_t type) {
    Conjunction out = schema;
    out.push_back(child(type_schemas()[type]));
    return out;
  };
  const bool raw = layout->raw && (layout->typed || bits != ArgumentTypes::kAny);
  for (size_t type = 0; type < layout->before.size(); ++type) {
    NodeId value = kNever;
    if (type == ArgumentsLayout::kString && raw) {
      TANDEM_TRY(content, string_content(narrowed(type), Spelling::kUtf8));
      std::vector<RegexId> parts{without_never(content, Spelling::kUtf8)};
      for (const Reading& reading : kReadings) {
        if (layout->typed || (bits & reading.type) == 0) continue;
        TANDEM_TRY(pattern, parse_pattern(reading.pattern));
        TANDEM_TRY(taken, match_whole(regex(), pattern, Spelling::kUtf8));
        parts.push_back(regex().negate(taken));
      }
      value = program.lexeme(regex().both(parts));
    } else {
      TANDEM_TRY(built, compile(narrowed(type)));
      value = built;
    }
    if (value != kNever) ways.push_back(program.sequence({layout->before[type], value}));
  }
  layout_ = layout;
  const NodeId value = program.choice(ways);
  return value == kNever ? kNever : program.sequence({value, layout->close});
}

Result<NodeId> SchemaCompiler::compile_arguments(const ArgumentsLayout& layout) {
  layout_ = &layout;
  auto built = compile_arguments(Conjunction{child(source_.root())});
  layout_ = nullptr;
  return built;
}

Result<NodeId> SchemaCompiler::compile_arguments(const Conjunction& conjunction) {
  TANDEM_CHECK(check_depth(conjunction));
  const Deeper deeper(depth_);
  return build_arguments(conjunction);
}

// As build(), of an object that has no braces.
Result<NodeId> SchemaCompiler::build_arguments(const Conjunction& conjunction) {
  Conjunction items;
  TANDEM_TRY(possible, flatten(conjunction, items));
  if (!possible) return kNever;
  TANDEM_TRY(split, find_disjunction(items));
  if (split) {
    const Branches branches = take_apart(items, *split);
    std::vector<NodeId> parts;
    for (const Conjunction& branch : branches.all) {
      TANDEM_TRY(part, compile_arguments(branch));
      parts.push_back(part);
    }
    const ArgumentsLayout* layout = std::exchange(layout_, nullptr);
    if (split->bit == kOneOf) TANDEM_CHECK(check_disjoint(branches.rest, *split, branches.all));
    layout_ = layout;
    return to_.program.choice(parts);
  }
  TANDEM_TRY(facts, gather(items));
  if (!facts.enums.empty())
    return refused(*items.front().schema, "enum", "arguments as a whole are not listed");
  if ((facts.types & kObject) == 0) return kNever;
  return build_members(items, facts, layout_->between);
}

}  // namespace tandem::grammar
