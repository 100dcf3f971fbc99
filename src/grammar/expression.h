// Expressions of grammars in text (GBNF, Lark), and how they become programs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/front_end.h"
#include "grammar/regex_syntax.h"

namespace tandem::grammar {

struct Expression {
  enum class Kind : uint8_t {
    kText,       // `text`, or with `any_case` in any case
    kPattern,    // a regular expression, of the whole
    kRule,       // by name
    kSpecial,    // special tokens, as spelled
    kJson,       // a JSON schema; `text`, and where it stands in `pointer`
    kArguments,  // arguments of a call: as kJson; `names` and `parts` say how they are written
    kInner,      // a client's grammar, `text`, inside a text; `names`: its kind and the spelling
    kUntil,      // any text that ends with the first of the markers and holds none of `never`
    kWithout,    // any text that holds none of the markers
    kSequence,
    kChoice,
    kRepeat,
  };
  Kind kind = Kind::kSequence;
  std::string text = {};
  std::string pointer = {};
  bool any_case = false;
  Pattern pattern = {};
  std::vector<std::string> markers = {};
  std::vector<std::string> never = {};
  std::vector<std::string> names = {};
  // kJson, kArguments: what cannot be enforced is kept to simple_parameters(); what could only be
  // approximated is refused.
  bool lax = false;
  bool strict = false;
  bool object = false;  // kJson: an object, whatever else the schema allows
  std::vector<Expression> parts = {};
  uint32_t min = 0;
  uint32_t max = 0;

  static Expression of(Kind kind) {
    Expression out;
    out.kind = kind;
    return out;
  }
};

struct GrammarRule {
  Expression body;
  bool terminal = false;  // one lexeme, whatever it consists of
  bool lazy = false;  // of a terminal: its matches that have no shorter match as their beginning
};
using GrammarRules = std::map<std::string, GrammarRule>;

struct RuleOptions {
  // What is regular and small becomes one lexeme (for grammars written in characters); otherwise
  // each text, pattern and terminal is one.
  bool fold = false;
  const InnerText* inner = nullptr;  // inside another text; outlives the call
};
Result<NodeId> build_rules(FrontEnd& to, const GrammarRules& rules, const std::string& root,
                           const RuleOptions& options);

inline constexpr int kExpressionDepth = 200;
inline constexpr int kMostRepetitions = 4;  // of one thing: a*? is a repetition of a repetition

// The rule, in our Lark, of a terminal that grammars import by name; empty: there is none.
std::string_view common_terminal(std::string_view name);

// Reads what both languages have in common.
class GrammarReader {
 public:
  explicit GrammarReader(std::string_view text) : text_(text) {}

 protected:
  tl::unexpected<Error> wrong(const std::string& what) const;
  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(std::string_view wanted) {
    if (!text_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  }
  std::string name();
  Result<std::string> quoted();        // after its opening quote
  Result<Pattern> bracket();           // at its [
  Result<std::string> special_text();  // at its <
  std::optional<uint32_t> number();
  // {n}, {n,}, {n,m} at its {
  Status braces(uint32_t& min, uint32_t& max);

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace tandem::grammar
