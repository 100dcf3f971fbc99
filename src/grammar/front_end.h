// Front ends: texts of each kind of grammar to programs. Each checks its input itself; errors as
// grammar.h says.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "grammar/code_points.h"
#include "grammar/program.h"
#include "grammar/vocabulary.h"
#include "protocol/grammar_spec.h"

namespace tandem::grammar {

// How values are written where a family of models does not write JSON.
struct Notation {
  enum class Kind : uint8_t {
    kJson,
    kPython,  // True, False, None
    kGemma,   // strings raw between two of `quote`, plain names of properties bare
  };
  Kind kind = Kind::kJson;
  NodeId quote = kNever;
  // What no text may hold, since parsers would take it for the end of the call.
  std::vector<std::string> never = {};
};

// How the arguments of a call are written one by one: pairs of a name and a value. A pair is open,
// the name, what introduces a value of its type, the value, close; `between` stands between pairs.
struct ArgumentsLayout {
  enum Type : uint8_t { kString, kNumber, kBoolean, kNull, kObject, kArray };
  NodeId open = kNothing;
  std::array<NodeId, 6> before = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing};
  NodeId close = kNothing;
  NodeId between = kNothing;
  // Strings are raw text. Unless `typed`, readers take a value for JSON when it reads as such and
  // its type may be (ArgumentTypes of the property).
  bool raw = false;
  bool typed = false;
  bool escaped_names = false;  // &amp; &lt; &gt; &quot;
  bool identifiers = false;    // names are words
};

inline constexpr std::array<const char*, 6> kArgumentTypeNames = {
    "string", "number", "boolean", "null", "object", "array"};  // in the order of Type

// One level deeper, while it lives: what recurses counts itself and stops before the stack ends.
class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

struct FrontEnd {
  Program& program;
  const Vocabulary* vocabulary;  // null: names of special tokens are not looked up
  bool strict = false;  // of the schema at hand: what could only be approximated is refused
  protocol::JsonSpelling spelling = protocol::JsonSpelling::kSpaced;
  Notation notation = {};
  size_t size_limit = 0;
  std::chrono::steady_clock::time_point deadline;
  std::vector<std::string> notes = {};

  // To be called now and then.
  Status check_limits() const;
  // The tokens that `text` names: "<|name|>" or "<[12,20-25]>".
  Result<NodeId> special(std::string_view text);
};

// `object`: what the schema allows beside objects is left out.
Result<NodeId> build_json_schema(FrontEnd& to, const JsonValue& schema, const std::string& pointer,
                                 bool object = false);
// The arguments of a call whose object is `schema`.
Result<NodeId> build_arguments(FrontEnd& to, const JsonValue& schema, const std::string& pointer,
                               const ArgumentsLayout& layout);
Result<NodeId> build_regex(FrontEnd& to, std::string_view text);
Result<NodeId> build_gbnf(FrontEnd& to, std::string_view text);
Result<NodeId> build_lark(FrontEnd& to, std::string_view text);

// A client's grammar inside another text, where its characters are spelled so: it may name no
// special tokens and no schemas.
struct InnerText {
  Spelling spelling = Spelling::kUtf8;
  // What would end the text for those who read it: taken out of the language where that is regular;
  // else out of each terminal, with a note when several could still spell one.
  std::vector<std::string> never = {};
  std::string pointer = {};  // where the grammar stands in the request
};
Result<NodeId> build_inner_lark(FrontEnd& to, std::string_view text, const InnerText& inner);
Result<NodeId> build_inner_gbnf(FrontEnd& to, std::string_view text, const InnerText& inner);
Result<NodeId> build_inner_regex(FrontEnd& to, std::string_view text, const InnerText& inner);
// `content` where none of `markers` stands in it.
RegexId without_markers(RegexStore& store, RegexId content, const std::vector<std::string>& markers,
                        Spelling spelling);

Result<NodeId> build_choice(FrontEnd& to, std::string_view text);

}  // namespace tandem::grammar
