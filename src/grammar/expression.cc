#include "grammar/expression.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "grammar/argument_types.h"

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
        fold_(options.fold || guarded()),
        most_parts_(guarded() ? kFoldedInnerParts : kFoldedParts) {}

  Result<NodeId> rule(const std::string& name) {
    const auto known = ids_.find(name);
    if (known != ids_.end()) return to_.program.call(known->second);
    const auto at = rules_.find(name);
    if (at == rules_.end()) return wrong("There is no rule '" + name + "'.");
    if (at->second.terminal || (fold_ && folds(at->second.body))) {
      TANDEM_TRY(regex, terminal(name));
      return lexeme(regex);
    }
    const RuleId id = to_.program.new_rule(name);
    ids_.emplace(name, id);
    TANDEM_TRY(body, node(at->second.body));
    to_.program.define(id, body);
    return to_.program.call(id);
  }

  // Which of the markers that must not stand in the text several lexemes could still spell; empty:
  // surely none.
  std::string spelled_across() {
    if (!guarded() || ids_.empty()) return {};  // without rules it is one lexeme
    for (const std::string& marker : inner_->never) {
      if (may_spell(marker)) return marker;
    }
    return {};
  }

 private:
  static tl::unexpected<Error> wrong(std::string what) {
    return make_error(400, "invalid_grammar", std::move(what));
  }
  bool guarded() const { return inner_ != nullptr && !inner_->never.empty(); }

  NodeId lexeme(RegexId regex) {
    if (!guarded()) return to_.program.lexeme(regex);
    const RegexId clean = without_markers(store(), regex, inner_->never, spelling_);
    if (std::ranges::find(lexemes_, clean) == lexemes_.end()) lexemes_.push_back(clean);
    return to_.program.lexeme(clean);
  }

  // A lexeme ends with the marker's beginning, others are what is in the middle, one begins with
  // the rest.
  bool may_spell(const std::string& marker) {
    constexpr size_t kMostLexemes = 64;
    constexpr size_t kEffort = 2000;
    if (lexemes_.size() > kMostLexemes) return true;
    const RegexId any = store().star(store().bytes(ByteSet::all()));
    const auto meets = [&](RegexId lexeme, RegexId other) {
      return !store().is_empty(store().both({lexeme, other}), kEffort);
    };
    const std::string_view text = marker;
    std::vector<bool> reached(text.size(), false);
    for (size_t at = 1; at < text.size(); ++at) {
      const RegexId head = store().literal(text.substr(0, at));
      for (const RegexId one : lexemes_)
        reached[at] = reached[at] || meets(one, store().concat(any, head));
    }
    for (size_t at = 1; at < text.size(); ++at) {
      if (!reached[at]) continue;
      const RegexId rest = store().literal(text.substr(at));
      for (const RegexId one : lexemes_) {
        for (size_t to = at + 1; to < text.size(); ++to)
          reached[to] = reached[to] || store().matches(one, text.substr(at, to - at));
        if (meets(one, store().concat(rest, any))) return true;
      }
    }
    return false;
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
      return lexeme(folded);
    }
    switch (expression.kind) {
      case Kind::kText:
        if (!expression.any_case && !guarded())
          return to_.program.literal(spelled(expression.text));
        [[fallthrough]];
      case Kind::kPattern:
      case Kind::kUntil:
      case Kind::kWithout: {
        TANDEM_TRY(one, regex(expression));
        return lexeme(one);
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
    auto built = of_schema(expression, *root);
    const auto fits = [&] {
      return built ? to_.program.derives_anything(*built) : built.error().code == "grammar_timeout";
    };
    if (expression.lax && !fits()) {
      to_.notes.push_back(built ? expression.pointer + " is not enforced."
                                : built.error().pointer.value_or(expression.pointer) +
                                      " is not enforced: " + built.error().message);
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
  bool fold_;
  size_t most_parts_;
  std::vector<RegexId> lexemes_;  // where guarded(): all
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
  if (const std::string marker = builder.spelled_across(); !marker.empty()) {
    to.notes.push_back(options.inner->pointer + ": a text that spells " + marker +
                       " out of several terminals would end its call.");
  }
  return built;
}

tl::unexpected<Error> GrammarReader::wrong(const std::string& what) const {
  const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
  const auto line = std::ranges::count(before, '\n') + 1;
  return make_error(400, "invalid_grammar",
                    "Line " + std::to_string(line) + " of the grammar: " + what + ".");
}

std::string GrammarReader::name() {
  std::string out;
  while (is_name(peek())) out += text_[at_++];
  return out;
}

std::optional<uint32_t> GrammarReader::number() {
  if (peek() < '0' || peek() > '9') return std::nullopt;
  uint32_t out = 0;
  while (peek() >= '0' && peek() <= '9')
    out = std::min(out * 10 + static_cast<uint32_t>(text_[at_++] - '0'), 100'000'000U);
  return out;
}

Status GrammarReader::braces(uint32_t& min, uint32_t& max) {
  ++at_;
  const auto skip = [&] {
    while (peek() == ' ') ++at_;
  };
  skip();
  const auto low = number();
  skip();
  min = max = low.value_or(0);
  bool bound = low.has_value();
  if (take(",")) {
    skip();
    const auto high = number();
    max = high.value_or(kUnbounded);
    bound = bound || high.has_value();
    skip();
  }
  if (!bound || !take("}")) return wrong("a repetition must be {n}, {n,} or {n,m}");
  if (min > max || min > 1'000'000 || (max != kUnbounded && max > 1'000'000))
    return wrong("the bounds of a repetition are too large or in the wrong order");
  return {};
}

Result<std::string> GrammarReader::quoted() {
  std::string out;
  while (peek() != '"') {
    if (at_end() || peek() == '\n') return wrong("a text has no end");
    if (peek() != '\\') {
      out += text_[at_++];
      continue;
    }
    ++at_;
    const char c = peek();
    ++at_;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t value = 0;
      for (size_t i = 0; i < digits; ++i) {
        const char digit = peek();
        const int nibble = digit >= '0' && digit <= '9'   ? digit - '0'
                           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                          : -1;
        if (nibble < 0) return wrong("an escape has too few digits");
        value = value * 16 + static_cast<uint32_t>(nibble);
        ++at_;
      }
      if (value > kLastCodePoint || (value >= 0xD800 && value < 0xE000))
        return wrong("an escape is no character");
      append_code_point(out, value);
      continue;
    }
    switch (c) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case '0':
        out += '\0';
        break;
      default:
        if (is_name(c) && c != '-' && c != '_') return wrong("an escape is not known");
        out += c;
    }
  }
  ++at_;
  return out;
}

Result<Pattern> GrammarReader::bracket() {
  const size_t start = at_++;
  while (!at_end() && peek() != ']' && peek() != '\n') at_ += peek() == '\\' ? 2 : 1;
  if (!take("]")) return wrong("a character class has no end");
  return parse_pattern(text_.substr(start, at_ - start));
}

Result<std::string> GrammarReader::special_text() {
  const size_t start = at_;
  while (!at_end() && peek() != '>' && peek() != '\n') ++at_;
  if (!take(">")) return wrong("a special token has no end");
  return std::string(text_.substr(start, at_ - start));
}

}  // namespace tandem::grammar
