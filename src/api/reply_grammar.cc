#include "api/reply_grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/custom_tools.h"
#include "api/tools/call_layout.h"

namespace tandem::api {

namespace {

using protocol::GrammarKind;
using protocol::GrammarSpec;

// Any text, and what ends it. None of `never` stands in it.
std::string until(const Marker& end, const std::vector<std::string>& never) {
  std::string markers;
  if (end.token >= 0) {
    markers = lark_text(end.spelling);
    for (const std::string& one : never) markers += ", " + lark_text(one);
    return "%without(" + markers + ") " + lark_marker(end);
  }
  for (const std::string& one : never) markers += " " + lark_text(one);
  return "%until(" + lark_text(end.spelling) + (never.empty() ? "" : " without" + markers) + ")";
}

bool is_offered(const ApiRequest& request, const std::string& name) {
  if (request.choice == ToolChoice::kNamed) return name == request.chosen_tool;
  const auto& allowed = request.allowed_tools;
  return !allowed || std::ranges::find(*allowed, name) != allowed->end();
}

std::vector<GrammarTool> offered(const ApiRequest& request) {
  std::vector<GrammarTool> out;
  const auto& tools = request.tools.items();
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonValue* function = tools[i].find("function");
    const JsonValue* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !is_offered(request, name->as_string())) continue;
    GrammarTool tool{.name = name->as_string(), .parameters = {}, .pointer = {}};
    if (i < request.tool_pointers.size()) tool.pointer = request.tool_pointers[i];
    if (const JsonValue* strict = function->find("strict")) tool.strict = strict->as_bool();
    if (const JsonValue* parameters = function->find("parameters")) tool.parameters = *parameters;
    if (!tool.parameters.is_object())
      tool.parameters = JsonValue::object({{"type", JsonValue::string("object")}});
    const ToolName* known = find_tool_name(request, tool.name);
    if (known != nullptr && !known->syntax.empty())
      tool.custom = CustomText{known->syntax, known->definition, known->pointer};
    out.push_back(std::move(tool));
  }
  return out;
}

// Where the body names the tool.
std::string name_pointer(const ApiRequest& request, const GrammarTool& tool) {
  if (is_custom(request, tool.name)) return tool.pointer + "/name";
  return tool.pointer.substr(0, tool.pointer.rfind('/')) + "/name";
}

std::string inner(const char* kind, const AnswerFormat& format) {
  return std::string("%inner@") + format.pointer + " (" + kind + ", utf8) " +
         lark_text(format.definition);
}

// An answer's format where the answer is only a part of the reply.
std::string lark_of(const AnswerFormat& format) {
  using Kind = AnswerFormat::Kind;
  switch (format.kind) {
    case Kind::kRegex:
      return inner("regex", format);
    case Kind::kGbnf:
      return inner("gbnf", format);
    case Kind::kLark:
      return "(" + inner("lark", format) + ")";
    case Kind::kChoice: {
      std::string out;
      for (const JsonValue& one : format.schema.items())
        out += (out.empty() ? "(" : " | ") + lark_text(one.as_string());
      return out + ")";
    }
    default:
      break;
  }
  const bool schema = format.kind == Kind::kJsonSchema;
  return std::string("%json") + (format.strict ? "!" : "") + "@" + format.pointer + " " +
         (schema ? format.schema.dump() : R"({"type": "object"})");
}

// Where it is the whole reply. A client's Lark and GBNF are read as where they are a part: without
// special tokens and schemas.
GrammarSpec spec_of(const AnswerFormat& format) {
  using Kind = AnswerFormat::Kind;
  GrammarSpec out{.strict = format.strict, .pointer = format.pointer};
  switch (format.kind) {
    case Kind::kRegex:
      out.kind = GrammarKind::kRegex;
      out.text = format.definition;
      break;
    case Kind::kGbnf:
    case Kind::kLark:
      out.kind = GrammarKind::kLark;
      out.text = "start: " + lark_of(format) + "\n";
      break;
    case Kind::kChoice:
      out.kind = GrammarKind::kChoice;
      out.text = format.schema.dump();
      break;
    case Kind::kJsonSchema:
      out.kind = GrammarKind::kJsonSchema;
      out.text = format.schema.dump();
      break;
    default:
      break;  // any object
  }
  return out;
}

class Builder {
 public:
  Builder(const ApiRequest& request, const ReplyFormat& format, Opening opening)
      : request_(request), format_(format), opening_(opening), tools_(offered(request)) {}

  Result<std::optional<GrammarSpec>> run() {
    const bool forced = request_.choice != ToolChoice::kAuto;
    const auto kept = std::ranges::find_if(
        tools_, [](const GrammarTool& tool) { return tool.strict || tool.custom; });
    const bool strict = kept != tools_.end();
    const bool limited = request_.allowed_tools.has_value();
    const bool formatted = request_.format.kind != AnswerFormat::Kind::kText;
    if (!forced && !formatted && !strict && !limited) return std::nullopt;
    auto layout = format_.layout(opening_);
    if (!layout && (forced || strict || limited)) {
      Error error = layout.error();
      error.pointer = forced || !strict ? "/tool_choice"
                      : kept->custom    ? kept->custom->pointer
                                        : kept->pointer;
      return tl::unexpected(std::move(error));
    }
    if (layout) layout_ = std::move(*layout);
    if (forced && tools_.empty()) {
      return make_error(400, "invalid_value", "'tool_choice' asks for a call, but allows no tool",
                        "/tool_choice");
    }
    if (forced && !layout_) {
      return make_error(400, "unsupported_parameter",
                        "calls cannot be demanded of this model: how it writes them is not known; "
                        "its worker can be told with --tool-parser",
                        "/tool_choice");
    }
    if (!forced && !formatted && !layout_) return std::nullopt;  // nothing will be read as a call
    const bool calls = !tools_.empty() && layout_.has_value();
    if (calls) TANDEM_CHECK(check_names());
    const bool framed = layout_ && layout_->frame;
    if (formatted && !calls && !framed && !reasons()) return spec_of(request_.format);
    GrammarSpec spec{.kind = GrammarKind::kLark};
    std::string body;
    if (forced) {
      body = forced_calls();
    } else if (formatted) {
      body = framed ? layout_->frame->answer_open + " " + lark_of(request_.format) + " " +
                          layout_->frame->answer_close
                    : lark_of(request_.format);
      if (calls) body = "(" + body + " | " + forced_calls() + ")";
    } else {
      body = framed ? framed_calls() : free_calls();
    }
    spec.text = "start: " + reasoning() + body + "\n" + rules_;
    return spec;
  }

 private:
  Status check_names() const {
    for (const GrammarTool& tool : tools_) {
      if (!tool.name.empty() && layout_->names(tool.name)) continue;
      return make_error(400, "invalid_value",
                        "calls of this tool cannot be kept to a grammar: in the syntax of this "
                        "model's family its name would not be read back",
                        name_pointer(request_, tool));
    }
    return {};
  }

  bool reasons() const {
    return opening_ == Opening::kReasoning ||
           (opening_ == Opening::kFree && !format_.style().open.empty());
  }

  // What comes before the answer; a model that may reason need not.
  std::string reasoning() const {
    if (layout_ && layout_->frame) {
      if (opening_ == Opening::kAnswer) return {};
      const ReplyFrame& frame = *layout_->frame;
      const std::string rest = "/(.|\\n)*/ " + frame.thought_close;
      if (opening_ == Opening::kReasoning) return rest + " ";
      return "[" + frame.thought_open + " " + rest + "] ";
    }
    if (!reasons()) return {};
    const ReasoningStyle& style = format_.style();
    std::vector<std::string> never;
    if (style.calls_end_it && layout_) never = layout_->markers;
    const std::string rest = until(style.close.front(), never) + " /\\n{0,2}/";
    if (opening_ == Opening::kReasoning) return rest + " ";
    return "[" + lark_marker(style.open.front()) + " " + lark_text(style.label) + " " + rest + "] ";
  }

  // Everything from the first call to what closes the last.
  std::string calls() {
    rules_ += "call: ";
    for (size_t i = 0; i < tools_.size(); ++i)
      rules_ += (i > 0 ? "\n  | " : "") + layout_->call(tools_[i]);
    rules_ += "\n";
    const bool several = request_.parallel_calls && request_.choice != ToolChoice::kNamed;
    std::string out = layout_->open + " call ";
    if (several && !layout_->single)
      out += layout_->between.empty() ? "call* " : "(" + layout_->between + " call)* ";
    return out + layout_->close;
  }

  std::string forced_calls() { return (layout_->bare != 0 ? "" : layout_->opener + " ") + calls(); }

  // Text in which calls may stand, each as its tool says.
  std::string free_calls() {
    const std::string made = calls();
    const CallLayout& layout = *layout_;
    if (layout.bare != 0) {
      rules_ += std::string("TEXT: /[ \\n\\r\\t]*[^ \\n\\r\\t\\") + layout.bare + "](.|\\n)*/\n";
      const std::string marked = made + " | " + layout.opener + " " + made;
      return "(" + marked + " | /[ \\n\\r\\t]*/ | TEXT)";
    }
    const std::string calls = layout.before + " " + made;
    return (request_.parallel_calls ? "(" + calls + ")* " : "[" + calls + "] ") + layout.free;
  }

  std::string framed_calls() {
    const ReplyFrame& frame = *layout_->frame;
    return "(" + frame.answer_open + " /(.|\\n)*/ " + frame.answer_close + " | [" +
           frame.before_calls + "] " + calls() + ")";
  }

  const ApiRequest& request_;
  const ReplyFormat& format_;
  const Opening opening_;
  const std::vector<GrammarTool> tools_;
  std::optional<CallLayout> layout_;
  std::string rules_;
};

}  // namespace

Result<std::optional<protocol::GrammarSpec>> reply_grammar(const ApiRequest& request,
                                                           const ReplyFormat& format,
                                                           Opening opening) {
  if (!is_conversation(request.endpoint)) {
    if (request.format.kind == AnswerFormat::Kind::kText) return std::nullopt;
    return spec_of(request.format);
  }
  return Builder(request, format, opening).run();
}

}  // namespace tandem::api
