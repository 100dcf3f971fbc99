// How a family's calls are written, as parts of a grammar in our Lark (src/grammar/README.md). What
// a layout says is what the parser of the same row of families.cc reads: with it calls are demanded
// and their arguments kept to the tools' schemas. Pure.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/tools/syntax.h"
#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// The text of a custom tool, which its own grammar describes.
struct CustomText {
  std::string syntax;  // "lark" or "regex"
  std::string definition;
  std::string pointer;
};

// A function as a grammar needs it. A custom tool is a function of one text, `input`.
struct GrammarTool {
  std::string name;
  JsonValue parameters;  // an object
  std::string pointer;   // of the parameters in the request's body
  bool strict = false;   // false: what cannot be enforced may be any object
  std::optional<CustomText> custom = {};
};

// Of families whose replies are machines: what stands around what they say.
struct ReplyFrame {
  std::string thought_open;   // before reasoning, when the prompt did not open it
  std::string thought_close;  // behind reasoning
  std::string answer_open;
  std::string answer_close;
  std::string before_calls;  // what may be said before calls
};

// Whether the parser reads a tool's name where a call says it. Names are not empty.
using NameRule = std::function<bool(std::string_view)>;
// At most 256 bytes and none of these.
NameRule names_without(std::string_view bytes);
NameRule any_name();

// All strings are Lark.
struct CallLayout {
  std::string before;  // any text and the marker that opens calls; empty: calls begin bare
  std::string opener;  // that marker alone
  std::string free;    // any text in which no call opens
  std::vector<std::string> markers;  // spellings that open calls
  // Calls without a marker begin with this character, where an answer begins.
  char bare = 0;
  std::string open;     // before the first call
  std::string between;  // between two
  std::string close;    // behind the last
  bool single = false;  // a reply has at most one
  std::function<std::string(const GrammarTool&)> call;
  NameRule names = names_without(" \t\r\n\"&<>{");
  std::optional<ReplyFrame> frame;
};

struct LayoutInput {
  const Markers& markers;          // of the family, in its order
  const Markers& kept;             // tokens that are parts of markers
  std::string_view chat_template;  // says which of a family's spellings a model was made with
  Opening opening = Opening::kFree;
};

// Pieces of layouts.
std::string lark_text(std::string_view text);   // a string
std::string lark_marker(const Marker& marker);  // its token, or its letters
std::string json_text(std::string_view text);   // as lark_text, of the text as a JSON string
// A tool's arguments as a JSON object.
std::string json_arguments(const GrammarTool& tool);
// {"name": ..., KEY: ...}
std::string json_call(const GrammarTool& tool, std::string_view key);
// Arguments one by one; members are Lark, see %arguments.
struct ArgumentParts {
  std::string open;
  std::string value;   // of every type
  std::string string;  // of strings, when they have another; with it types are explicit
  std::string typed;   // "number = ..., boolean = ..., ", when each type has its own
  std::string close;
  std::string between = "\"\"";
  std::string flags = "raw";  // "raw", "typed", "python"
  std::vector<std::string> never = {};
};
std::string listed_arguments(const GrammarTool& tool, const ArgumentParts& parts);
// The grammar of a custom tool's text, its characters spelled "utf8" or "json".
// None of `never` stands in it, as far as a grammar can say that.
std::string custom_text(const CustomText& text, const char* spelling,
                        const std::vector<std::string>& never = {});

// The first of the markers opens calls, none of them may stand in free text.
void open_with(CallLayout& layout, std::initializer_list<const Marker*> markers);
// Spellings of those markers that are letters.
std::vector<std::string> letters_of(std::initializer_list<const Marker*> markers);
// Errors: 400 "unsupported_parameter" naming the first marker that is no token of the vocabulary.
Status need_tokens(std::string_view family, std::initializer_list<const Marker*> markers);

// The families', beside their parsers.
Result<CallLayout> hermes_layout(const LayoutInput& in);
Result<CallLayout> smollm_layout(const LayoutInput& in);
Result<CallLayout> llama_layout(const LayoutInput& in);
Result<CallLayout> mistral_layout(const LayoutInput& in);
Result<CallLayout> kimi_layout(const LayoutInput& in);
Result<CallLayout> deepseek_layout(const LayoutInput& in);
Result<CallLayout> pythonic_layout(const LayoutInput& in);
Result<CallLayout> gemma_layout(const LayoutInput& in);
Result<CallLayout> glm_layout(const LayoutInput& in);
Result<CallLayout> qwen_xml_layout(const LayoutInput& in);
Result<CallLayout> dsml_layout(const LayoutInput& in);
Result<CallLayout> harmony_layout(const LayoutInput& in);
Result<CallLayout> xtml_layout(const LayoutInput& in);

}  // namespace tandem::api
