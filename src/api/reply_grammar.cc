#include "api/reply_grammar.h"

#include <algorithm>
#include <string>
#include <vector>

#include "api/fields.h"
#include "grammar/grammar.h"

namespace tandem::api {

namespace {

using protocol::GrammarKind;
using protocol::GrammarSpec;

// A string of our Lark.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

std::string marker(const Marker& of) {
  return of.token >= 0 ? "<[" + std::to_string(of.token) + "]>" : quoted(of.spelling);
}

// Any text up to a marker and the marker. A terminal `name` is added for the text.
std::string until(const Marker& of, const char* name, std::string& rules) {
  const bool token = of.token >= 0;
  rules +=
      std::string(name) + ": " + (token ? "%without(" : "%until(") + quoted(of.spelling) + ")\n";
  return token ? std::string(name) + " " + marker(of) : name;
}

struct OfferedTool {
  std::string name;
  JsonValue parameters;
  bool strict = false;
  std::string pointer;
};

std::vector<OfferedTool> offered(const ApiRequest& request) {
  std::vector<OfferedTool> out;
  const auto& tools = request.tools.items();
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonValue* function = tools[i].find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr) continue;
    if (request.choice == ToolChoice::kNamed && name->as_string() != request.chosen_tool) continue;
    OfferedTool tool{.name = name->as_string(),
                     .parameters = {},
                     .strict = false,
                     .pointer = pointer_to("/tools", i) + "/function/parameters"};
    if (const JsonValue* strict = function->find("strict")) tool.strict = strict->as_bool();
    if (const JsonValue* parameters = function->find("parameters")) tool.parameters = *parameters;
    if (!tool.parameters.is_object())
      tool.parameters = JsonValue::object({{"type", JsonValue::string("object")}});
    // What a schema says beyond what grammars can do is only demanded by strict tools.
    GrammarSpec spec;
    spec.kind = GrammarKind::kJsonSchema;
    spec.text = tool.parameters.dump();
    if (!tool.strict && !grammar::validate(spec))
      tool.parameters = JsonValue::object({{"type", JsonValue::string("object")}});
    out.push_back(std::move(tool));
  }
  return out;
}

std::string json(const JsonValue& schema, const std::string& pointer) {
  return "%json@" + pointer + " " + schema.dump();
}

// One call of a tool in the family's syntax; without the marker that opens it when `opened`.
using WriteCall = std::string (*)(const OfferedTool& tool, const Markers& markers, bool opened);

std::string hermes_call(const OfferedTool& tool, const Markers& markers, bool opened) {
  JsonValue name = JsonValue::string(tool.name);
  return (opened ? "" : marker(markers[0]) + " ") +
         quoted("\n{\"name\": " + name.dump() + ", \"arguments\": ") + " " +
         json(tool.parameters, tool.pointer) + " " + quoted("}\n") + " " + marker(markers[1]);
}

std::string llama_call(const OfferedTool& tool, const Markers& markers, bool opened) {
  JsonValue name = JsonValue::string(tool.name);
  (void)markers;
  (void)opened;
  return quoted("{\"name\": " + name.dump() + ", \"parameters\": ") + " " +
         json(tool.parameters, tool.pointer) + " " + quoted("}");
}

std::string mistral_call(const OfferedTool& tool, const Markers& markers, bool opened) {
  return (opened ? "" : marker(markers[0]) + " ") + quoted(tool.name) + " " + marker(markers[2]) +
         " " + json(tool.parameters, tool.pointer);
}

std::string kimi_call(const OfferedTool& tool, const Markers& markers, bool opened) {
  return (opened ? "" : marker(markers[2]) + " ") + quoted("functions." + tool.name + ":") +
         " /[0-9]{1,6}/ " + marker(markers[3]) + " " + json(tool.parameters, tool.pointer) + " " +
         marker(markers[4]);
}

struct Shape {
  std::string_view family;
  WriteCall call;
  const char* separator;  // between calls
  bool section;           // markers 0 and 1 stand around all calls
};
constexpr Shape kShapes[] = {{"hermes", hermes_call, "\n", false},
                             {"llama3_json", llama_call, "; ", false},
                             {"mistral", mistral_call, "", false},
                             {"kimi_k2", kimi_call, "", true}};

const Shape* shape_of(const ReplyFormat& format) {
  const auto* found = std::ranges::find(kShapes, format.tool_parser(), &Shape::family);
  if (found == std::end(kShapes)) return nullptr;
  // Before their v11 Mistral's models write lists.
  if (found->call == mistral_call && format.markers()[2].token < 0) return nullptr;
  return found;
}

std::string alternatives(const std::vector<OfferedTool>& tools, const Shape& shape,
                         const Markers& markers, bool opened) {
  std::string out;
  for (const OfferedTool& tool : tools)
    out += (out.empty() ? "" : "\n  | ") + shape.call(tool, markers, opened);
  return out;
}

class Builder {
 public:
  Builder(const ApiRequest& request, const ReplyFormat& format, Opening opening)
      : request_(request), format_(format), opening_(opening) {}

  Result<std::optional<GrammarSpec>> run() {
    const bool forced = request_.choice != ToolChoice::kAuto;
    const std::vector<OfferedTool> tools = offered(request_);
    const bool strict = std::ranges::any_of(tools, &OfferedTool::strict);
    const bool formatted = request_.format.kind != AnswerFormat::Kind::kText;
    if (!forced && !formatted && !strict) return std::nullopt;
    const Shape* shape = shape_of(format_);
    if (forced && shape == nullptr) {
      return make_error(400, "unsupported_parameter",
                        "calls of this model's family (" + std::string(format_.tool_parser()) +
                            ") cannot be forced; use 'auto'",
                        "/tool_choice");
    }
    if (!forced && !formatted && shape == nullptr) return std::nullopt;
    GrammarSpec spec;
    spec.strict = strict || request_.format.strict;
    const bool calls = !tools.empty() && shape != nullptr;
    if (formatted && !forced && !calls && !reasons()) return plain(std::move(spec));
    spec.kind = GrammarKind::kLark;
    std::string body;
    if (forced) {
      body = forced_calls(tools, *shape);
    } else if (formatted) {
      body = answer();
      if (calls) body = "(" + body + " | " + forced_calls(tools, *shape) + ")";
    } else {
      body = free_calls(tools, *shape);
    }
    spec.text = "start: " + reasoning() + body + "\n" + rules_;
    return spec;
  }

 private:
  bool reasons() const {
    return opening_ == Opening::kReasoning ||
           (opening_ == Opening::kFree && !format_.style().open.empty());
  }

  // What comes before the answer; a model that may reason need not.
  std::string reasoning() {
    if (!reasons()) return {};
    const ReasoningStyle& style = format_.style();
    const std::string rest = until(style.close.front(), "THOUGHT", rules_) + " /\\n{0,2}/";
    if (opening_ == Opening::kReasoning) return rest + " ";
    return "[" + marker(style.open.front()) + " " + rest + "] ";
  }

  std::string answer() const {
    const AnswerFormat& format = request_.format;
    return format.kind == AnswerFormat::Kind::kJsonSchema
               ? json(format.schema, format.pointer)
               : json(JsonValue::object({{"type", JsonValue::string("object")}}), format.pointer);
  }

  Result<std::optional<GrammarSpec>> plain(GrammarSpec spec) const {
    const AnswerFormat& format = request_.format;
    const bool schema = format.kind == AnswerFormat::Kind::kJsonSchema;
    spec.kind = schema ? GrammarKind::kJsonSchema : GrammarKind::kJsonObject;
    if (schema) spec.text = format.schema.dump();
    spec.pointer = format.pointer;
    return spec;
  }

  std::string forced_calls(const std::vector<OfferedTool>& tools, const Shape& shape) {
    const Markers& markers = format_.markers();
    rules_ += "call: " + alternatives(tools, shape, markers, false) + "\n";
    std::string out = "call";
    const bool several = request_.parallel_calls && request_.choice != ToolChoice::kNamed;
    if (several) {
      const bool apart = shape.separator[0] != '\0';
      out += apart ? " (" + quoted(shape.separator) + " call)*" : " call*";
    }
    if (shape.section) out = marker(markers[0]) + " " + out + " " + marker(markers[1]);
    return out;
  }

  // Text in which calls may stand, each as its tool says.
  std::string free_calls(const std::vector<OfferedTool>& tools, const Shape& shape) {
    const Markers& markers = format_.markers();
    if (shape.call == llama_call) {
      rules_ += "call: " + alternatives(tools, shape, markers, false) + "\n";
      rules_ += "TEXT: /[^{]/ /(.|\\n)*/\n";
      return "(call (" + quoted(shape.separator) + " call)* | [TEXT])";
    }
    const std::string text = until(markers[0], "TEXT", rules_);
    rules_ += "REST: %without(" + quoted(markers[0].spelling) + ")\n";
    rules_ += "call: " + alternatives(tools, shape, markers, !shape.section) + "\n";
    const std::string calls = shape.section ? "call* " + marker(markers[1]) : "call";
    return "(" + text + " " + calls + ")* REST";
  }

  const ApiRequest& request_;
  const ReplyFormat& format_;
  const Opening opening_;
  std::string rules_;
};

}  // namespace

Result<std::optional<protocol::GrammarSpec>> reply_grammar(const ApiRequest& request,
                                                           const ReplyFormat& format,
                                                           Opening opening) {
  return Builder(request, format, opening).run();
}

}  // namespace tandem::api
