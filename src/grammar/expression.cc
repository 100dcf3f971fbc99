#include "grammar/expression.h"

#include <algorithm>
#include <utility>

#include "grammar/argument_types.h"
#include "grammar/guarded_lexemes.h"

namespace tandem::grammar {
namespace {

using Kind = Expression::Kind;
constexpr size_t kFoldedParts = 400;
// Of a client's text that some markers must not stand in: only one lexeme says that exactly.
constexpr size_t kFoldedInnerParts = 2000;
// Of expressions within one another, through the rules that they name: each is a call on the stack.
constexpr int kDeepest = 1200;

class Builder {
 public:
  Builder(FrontEnd& to, const GrammarRules& rules, const RuleOptions& options)
      : to_(to),
        rules_(rules),
        inner_(options.inner),
        spelling_(inner_ == nullptr ? Spelling::kUtf8 : inner_->spelling),
        lexemes_(to, inner_),
        fold_(options.fold || lexemes_.guarded()),
        most_parts_(lexemes_.guarded() ? kFoldedInnerParts : kFoldedParts) {}

  Result<NodeId> rule(const std::string& name) {
    const auto known = ids_.find(name);
    if (known != ids_.end()) return to_.program.call(known->second);
    const auto at = rules_.find(name);
    if (at == rules_.end()) return wrong("There is no rule '" + name + "'.");
    if (at->second.terminal || (fold_ && folds(at->second.body))) {
      TANDEM_TRY(regex, terminal(name));
      return lexemes_.lexeme(regex);
    }
    const RuleId id = to_.program.new_rule(name);
    ids_.emplace(name, id);
    TANDEM_TRY(body, node(at->second.body));
    to_.program.define(id, body);
    return to_.program.call(id);
  }

  // As of GuardedLexemes.
  Result<std::string> spelled_across() {
    if (ids_.empty()) return std::string();  // without rules it is one lexeme
    return lexemes_.spelled_across();
  }

 private:
  static tl::unexpected<Error> wrong(std::string what) {
    return make_error(400, "invalid_grammar", std::move(what));
  }
  RegexStore& store() { return to_.program.regex(); }

  Status check_depth() const {
    if (depth_ <= kDeepest) return {};
    return make_error(400, "grammar_too_large", "Rules lead to one another too deeply.");
  }

  // Parts of a regular expression, SIZE_MAX when it is none or has too many to be folded; rules are
  // counted where they are used.
  size_t parts(const Expression& expression) {
    const Deeper deeper(depth_);
    if (depth_ > kDeepest) return SIZE_MAX;
    switch (expression.kind) {
      case Kind::kText:
      case Kind::kPattern:
      case Kind::kUntil:
      case Kind::kWithout:
        return 1;
      case Kind::kSpecial:
      case Kind::kJson:
      case Kind::kArguments:
      case Kind::kInner:
        return SIZE_MAX;
      case Kind::kRule: {
        const auto known = sizes_.find(expression.text);
        if (known != sizes_.end()) return known->second;
        const auto at = rules_.find(expression.text);
        if (at == rules_.end()) return SIZE_MAX;
        sizes_[expression.text] = SIZE_MAX;  // while it is looked at: recursion is not regular
        const size_t size = parts(at->second.body);
        return sizes_[expression.text] = size;
      }
      default:
        break;
    }
    size_t total = 1;
    for (const Expression& part : expression.parts) {
      const size_t own = parts(part);
      if (own == SIZE_MAX) return SIZE_MAX;
      total += own;
      if (total > most_parts_) return SIZE_MAX;
    }
    return total;
  }
  bool folds(const Expression& expression) { return parts(expression) <= most_parts_; }

  Result<NodeId> node(const Expression& expression) {
    const Deeper deeper(depth_);
    TANDEM_CHECK(check_depth());
    TANDEM_CHECK(to_.check_limits());
    if (fold_ && folds(expression)) {
      TANDEM_TRY(folded, regex(expression));
      return lexemes_.lexeme(folded);
    }
    switch (expression.kind) {
      case Kind::kText:
        if (!expression.any_case && !lexemes_.guarded())
          return to_.program.literal(spelled(expression.text));
        [[fallthrough]];
      case Kind::kPattern:
      case Kind::kUntil:
      case Kind::kWithout: {
        TANDEM_TRY(one, regex(expression));
        return lexemes_.lexeme(one);
      }
      case Kind::kRule:
        return rule(expression.text);
      case Kind::kSpecial:
        if (inner_ != nullptr) return refused("Special tokens");
        return to_.special(expression.text);
      case Kind::kJson:
      case Kind::kArguments:
        if (inner_ != nullptr) return refused("Schemas");
        return schema(expression);
      case Kind::kInner:
        if (inner_ != nullptr) return refused("Other grammars");
        return inner(expression);
      case Kind::kRepeat: {
        TANDEM_TRY(inner, node(expression.parts.front()));
        return to_.program.repeat(inner, expression.min, expression.max);
      }
      case Kind::kSequence:
      case Kind::kChoice:
        break;
    }
    std::vector<NodeId> out;
    for (const Expression& part : expression.parts) {
      TANDEM_TRY(one, node(part));
      out.push_back(one);
    }
    return expression.kind == Kind::kChoice ? to_.program.choice(out) : to_.program.sequence(out);
  }

  static tl::unexpected<Error> refused(const char* what) {
    return make_error(400, "unsupported_grammar",
                      std::string(what) + " cannot stand in a grammar of a client's text.");
  }

  Result<NodeId> schema(const Expression& expression) {
    auto root = parse_json(expression.text);
    if (!root)
      return make_error(400, "invalid_grammar", "The schema is not JSON: " + root.error().message,
                        expression.pointer);
    const bool strict =
        std::exchange(to_.strict, !expression.lax && (to_.strict || expression.strict));
    const Notation outer = to_.notation;
    const size_t noted = to_.notes.size();
    auto built = of_schema(expression, *root);
    const auto fits = [&] {
      return built ? to_.program.derives_anything(*built) : built.error().code == "grammar_timeout";
    };
    if (expression.lax && !fits()) {
      to_.notes.resize(noted);  // those of what is given up
      to_.notes.push_back(built ? expression.pointer + ": only types and required are enforced."
                                : built.error().pointer.value_or(expression.pointer) +
                                      " is not enforced, and of " + expression.pointer +
                                      " only types and required are: " + built.error().message);
      // Readers look at the types that were declared, whether they are enforced or not.
      for (const bool words : {false, true}) {
        built = of_schema(expression, simple_parameters(*root, words));
        if (fits()) break;
      }
    }
    to_.notation = outer;
    to_.strict = strict;
    return built;
  }

  Result<NodeId> of_schema(const Expression& expression, const JsonValue& root) {
    if (expression.kind == Kind::kArguments) return arguments(expression, root);
    return build_json_schema(to_, root, expression.pointer, expression.object);
  }

  // The parts say how: open, string, number, ..., value (of every type that is not named), close,
  // between; or python, or gemma = QUOTE. "never": texts.
  Result<NodeId> arguments(const Expression& expression, const JsonValue& root) {
    ArgumentsLayout layout;
    to_.notation = {};
    for (size_t i = 0; i < expression.names.size(); ++i) {
      const std::string& name = expression.names[i];
      if (name == "never") {
        to_.notation.never = expression.never;
        continue;
      }
      TANDEM_TRY(part, node(expression.parts[i]));
      const auto* const type = std::ranges::find(kArgumentTypeNames, name);
      if (name == "open") {
        layout.open = part;
      } else if (name == "value") {
        layout.before.fill(part);
      } else if (type != kArgumentTypeNames.end()) {
        layout.before[static_cast<size_t>(type - kArgumentTypeNames.begin())] = part;
      } else if (name == "close") {
        layout.close = part;
      } else if (name == "between") {
        layout.between = part;
      } else if (name == "raw") {
        layout.raw = true;
      } else if (name == "typed") {
        layout.raw = layout.typed = true;
      } else if (name == "entities") {
        layout.escaped_names = true;
      } else if (name == "python") {
        to_.notation.kind = Notation::Kind::kPython;
        layout.identifiers = true;
      } else if (name == "gemma") {
        to_.notation.kind = Notation::Kind::kGemma;
        to_.notation.quote = part;
      } else {
        return wrong("'" + name + "' says nothing of how arguments are written.");
      }
    }
    if (to_.notation.kind == Notation::Kind::kGemma)
      return build_json_schema(to_, root, expression.pointer, true);
    return build_arguments(to_, root, expression.pointer, layout);
  }

  Result<NodeId> inner(const Expression& expression) {
    const InnerText inner{
        .spelling = expression.names[1] == "json" ? Spelling::kJson : Spelling::kUtf8,
        .never = expression.never,
        .pointer = expression.pointer};
    const std::string& kind = expression.names[0];
    auto built = kind == "regex"  ? build_inner_regex(to_, expression.text, inner)
                 : kind == "gbnf" ? build_inner_gbnf(to_, expression.text, inner)
                                  : build_inner_lark(to_, expression.text, inner);
    if (built && !inner.never.empty() && !to_.program.derives_anything(*built)) {
      built = make_error(400, "invalid_grammar",
                         "Every text of this grammar would end its own call where models of this "
                         "family read it.");
    }
    if (!built && !built.error().pointer) {
      Error error = built.error();
      error.pointer = expression.pointer;
      return tl::unexpected(std::move(error));
    }
    return built;
  }

  std::vector<std::string> spelled(std::vector<std::string> texts) const {
    for (std::string& text : texts) text = spelled(text);
    return texts;
  }
  std::string spelled(const std::string& text) const { return spell(text, spelling_); }

  Result<RegexId> terminal(const std::string& name) {
    const auto known = terminals_.find(name);
    if (known != terminals_.end()) {
      if (!known->second) return wrong("The terminal '" + name + "' contains itself.");
      return *known->second;
    }
    const auto at = rules_.find(name);
    if (at == rules_.end()) return wrong("There is no rule '" + name + "'.");
    terminals_.emplace(name, std::nullopt);
    TANDEM_TRY(whole, regex(at->second.body));
    RegexId out = whole;
    if (at->second.lazy) {
      const RegexId more = store().repeat(any_character(store(), spelling_), 1, kUnbounded);
      out = store().both({whole, store().negate(store().concat(whole, more))});
    }
    terminals_[name] = out;
    return out;
  }

  Result<RegexId> regex(const Expression& expression) {
    const Deeper deeper(depth_);
    TANDEM_CHECK(check_depth());
    switch (expression.kind) {
      case Kind::kText: {
        if (!expression.any_case) return store().literal(spelled(expression.text));
        std::vector<RegexId> characters;
        for (size_t at = 0; at < expression.text.size();)
          characters.push_back(spell(
              store(), CodePoints::of(next_code_point(expression.text, at)).any_case(), spelling_));
        return store().concat(characters);
      }
      case Kind::kPattern:
        return match_whole(store(), expression.pattern, spelling_);
      case Kind::kRule:
        return terminal(expression.text);
      case Kind::kSpecial:
      case Kind::kJson:
      case Kind::kArguments:
      case Kind::kInner:
        return wrong("A terminal cannot hold special tokens or schemas.");
      case Kind::kUntil:
      case Kind::kWithout: {
        const RegexId any = any_character(store(), spelling_);
        const RegexId text = store().star(any);
        const RegexId marker = store().literals(spelled(expression.markers));
        const RegexId never = expression.never.empty()
                                  ? store().star(any)
                                  : store().negate(store().concat(
                                        {text, store().literals(spelled(expression.never)), text}));
        if (expression.kind == Kind::kWithout)
          return store().both({text, store().negate(store().concat({text, marker, text}))});
        return store().both(
            {store().concat(text, marker), never,
             store().negate(store().concat({text, marker, store().repeat(any, 1, kUnbounded)}))});
      }
      case Kind::kRepeat: {
        TANDEM_TRY(inner, regex(expression.parts.front()));
        return store().repeat(inner, expression.min, expression.max);
      }
      case Kind::kSequence:
      case Kind::kChoice:
        break;
    }
    std::vector<RegexId> out;
    for (const Expression& part : expression.parts) {
      TANDEM_TRY(one, regex(part));
      out.push_back(one);
    }
    return expression.kind == Kind::kChoice ? store().either(out) : store().concat(out);
  }

  FrontEnd& to_;
  const GrammarRules& rules_;
  const InnerText* inner_;
  Spelling spelling_;
  GuardedLexemes lexemes_;
  bool fold_;
  size_t most_parts_;
  std::map<std::string, RuleId> ids_;
  std::map<std::string, std::optional<RegexId>> terminals_;
  std::map<std::string, size_t> sizes_;
  int depth_ = 0;
};

}  // namespace

Result<NodeId> build_rules(FrontEnd& to, const GrammarRules& rules, const std::string& root,
                           const RuleOptions& options) {
  constexpr size_t kMostRules = 20'000;
  if (rules.size() > kMostRules)
    return make_error(400, "grammar_too_large", "The grammar has too many rules.");
  if (!rules.contains(root))
    return make_error(400, "invalid_grammar", "The grammar has no rule '" + root + "'.");
  Builder builder(to, rules, options);
  TANDEM_TRY(built, builder.rule(root));
  TANDEM_TRY(marker, builder.spelled_across());
  if (!marker.empty()) {
    to.notes.push_back(options.inner->pointer + ": a text that spells " + marker +
                       " out of several terminals would end its call.");
  }
  return built;
}

}  // namespace tandem::grammar
