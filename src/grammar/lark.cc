// Our Lark: see README.md for the language.
#include <algorithm>

#include "grammar/expression.h"

namespace tandem::grammar {
namespace {

using Kind = Expression::Kind;

constexpr std::string_view kFunctions[] = {"%json", "%arguments", "%inner", "%until", "%without"};

class LarkReader : GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Result<GrammarRules> read() {
    GrammarRules rules;
    skip();
    while (!at_end()) {
      if (take("%import")) {
        TANDEM_CHECK(import(rules));
        skip();
        continue;
      }
      if (peek() == '%')
        return wrong("directives such as %ignore are not supported: spell what they stand for");
      while (peek() == '?' || peek() == '!') ++at_;  // they shape a tree, which nobody builds here
      const std::string rule = name();
      if (rule.empty()) return wrong("a rule must begin with its name");
      if (take(".") && !number())
        return wrong("a priority is a number");  // there is no first match
      GrammarRule made;
      made.terminal = is_terminal(rule);
      skip();
      if (take("[")) {
        skip();
        if (!take("lazy")) return wrong("'lazy' is the only option of a terminal");
        skip();
        if (!take("]")) return wrong("options must end with ]");
        if (!made.terminal) return wrong("only terminals can be lazy");
        made.lazy = true;
        skip();
      }
      if (!take(":")) return wrong("':' must follow the name of a rule");
      TANDEM_TRY(body, choice(0));
      made.body = std::move(body);
      if (!rules.emplace(rule, std::move(made)).second)
        return wrong("the rule '" + rule + "' is defined twice");
      skip();
    }
    return rules;
  }

 private:
  // %import common.NAME [-> ALIAS], %import common (NAME, ...)
  Status import(GrammarRules& rules) {
    skip();
    if (!take("common")) return wrong("only 'common' can be imported from");
    if (!take(".")) {
      skip();
      if (!take("(")) return wrong("what is imported must be named");
      do {
        skip();
        const std::string one = name();
        TANDEM_CHECK(import_one(rules, one, one));
        skip();
      } while (take(","));
      if (!take(")")) return wrong("a list of names must end with )");
      return {};
    }
    const std::string one = name();
    const size_t behind = at_;
    while (peek() == ' ' || peek() == '\t') ++at_;
    std::string as = one;
    if (take("->")) {
      skip();
      as = name();
    } else {
      at_ = behind;
    }
    return import_one(rules, one, as);
  }

  Status import_one(GrammarRules& rules, const std::string& one, const std::string& as) {
    const std::string_view rule = common_terminal(one);
    if (rule.empty() || !is_terminal(as))
      return wrong("'" + one + "' is not among the common terminals");
    TANDEM_TRY(read, LarkReader(rule).read());
    GrammarRule made = std::move(read.begin()->second);
    rules.emplace(as, std::move(made));
    return {};
  }

  static bool is_terminal(const std::string& rule) {
    return std::ranges::none_of(rule, [](char c) { return c >= 'a' && c <= 'z'; });
  }

  void skip() {
    while (!at_end()) {
      if (peek() == '#' || (peek() == '/' && peek(1) == '/')) {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }

  // Whether a new rule begins here: a name, perhaps options, a colon.
  bool at_rule() const {
    size_t at = at_;
    while (at < text_.size() && (text_[at] == '?' || text_[at] == '!')) ++at;
    const size_t start = at;
    while (at < text_.size() && is_name(text_[at])) ++at;
    if (at == start) return false;
    if (at + 1 < text_.size() && text_[at] == '.' && text_[at + 1] >= '0' && text_[at + 1] <= '9') {
      ++at;
      while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') ++at;
    }
    const auto blank = [&] {
      while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t')) ++at;
    };
    blank();
    if (at < text_.size() && text_[at] == '[') {
      while (at < text_.size() && text_[at] != ']' && text_[at] != '\n') ++at;
      ++at;
      blank();
    }
    return at < text_.size() && text_[at] == ':';
  }

  Result<Expression> choice(int depth) {
    if (depth > kExpressionDepth) return wrong("groups are nested too deeply");
    Expression out = Expression::of(Kind::kChoice);
    while (true) {
      TANDEM_TRY(part, sequence(depth));
      out.parts.push_back(std::move(part));
      if (!take("|")) break;
    }
    if (out.parts.size() == 1) return std::move(out.parts.front());
    return out;
  }

  Result<Expression> sequence(int depth) {
    Expression out;
    while (true) {
      skip();
      if (at_end() || peek() == '|' || peek() == ')' || peek() == ']' || peek() == ',' ||
          at_rule() || (peek() == '%' && !at_function()))
        return out;
      if (take("->")) {  // a name for a tree
        skip();
        (void)name();
        continue;
      }
      TANDEM_TRY(part, atom(depth));
      TANDEM_TRY(repeated, repetition(std::move(part)));
      out.parts.push_back(std::move(repeated));
    }
  }

  bool at_function() const {
    const std::string_view rest = text_.substr(at_);
    return std::ranges::any_of(kFunctions, [&](auto name) { return rest.starts_with(name); });
  }

  Result<Expression> repetition(Expression inner) {
    for (int count = 0;; ++count) {
      uint32_t min = 0;
      uint32_t max = kUnbounded;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (peek() == '?' && !at_rule()) {
        ++at_;
        max = 1;
      } else if (peek() == '{') {
        TANDEM_CHECK(braces(min, max));
      } else if (take("~")) {
        const auto low = number();
        if (!low) return wrong("a number must follow ~");
        min = max = *low;
        if (take("..")) {
          const auto high = number();
          if (!high || *high < min) return wrong("a repetition must be ~n or ~n..m");
          max = *high;
        }
      } else {
        return inner;
      }
      if (count == kMostRepetitions) return wrong("too many repetitions follow one another");
      Expression out = Expression::of(Kind::kRepeat);
      out.min = min;
      out.max = max;
      out.parts.push_back(std::move(inner));
      inner = std::move(out);
    }
  }

  Result<Expression> text() {
    Expression out = Expression::of(Kind::kText);
    TANDEM_TRY(value, quoted());
    out.text = std::move(value);
    out.any_case = peek() == 'i' && !is_name(peek(1)) && take("i");
    if (peek() != '.' || peek(1) != '.') return out;
    at_ += 2;
    if (!take("\"")) return wrong("a range must end with a text");
    TANDEM_TRY(last, quoted());
    size_t first_end = 0;
    size_t last_end = 0;
    const uint32_t from = next_code_point(out.text, first_end);
    const uint32_t to = next_code_point(last, last_end);
    if (first_end != out.text.size() || last_end != last.size() || from > to)
      return wrong("a range is of two characters in order");
    Expression range = Expression::of(Kind::kPattern);
    range.pattern.kind = Pattern::Kind::kSet;
    range.pattern.set = {{from, to}};
    return range;
  }

  Result<Expression> regex() {
    std::string pattern;
    while (peek() != '/') {
      if (at_end() || peek() == '\n') return wrong("a regular expression has no end");
      if (peek() == '\\' && peek(1) == '/') {
        ++at_;
      } else if (peek() == '\\') {
        pattern += text_[at_++];
      }
      if (!at_end()) pattern += text_[at_++];
    }
    ++at_;
    PatternOptions options{.dot = Dot::kLine};
    for (; is_name(peek()); ++at_) {
      if (peek() == 'i') {
        options.any_case = true;
      } else if (peek() == 's') {
        options.dot = Dot::kAll;
      } else {
        return wrong("the flags of a regular expression are i and s");
      }
    }
    auto parsed = parse_pattern(pattern, options);
    if (!parsed) {
      if (parsed.error().code == "unsupported_grammar") return tl::unexpected(parsed.error());
      return wrong(parsed.error().message);
    }
    Expression out = Expression::of(Kind::kPattern);
    out.pattern = std::move(*parsed);
    return out;
  }

  Result<Expression> markers(Kind kind) {
    Expression out = Expression::of(kind);
    skip();
    if (!take("(")) return wrong("markers stand in brackets");
    do {
      skip();
      if (!take("\"")) return wrong("a marker is a text");
      TANDEM_TRY(marker, quoted());
      if (marker.empty()) return wrong("a marker is empty");
      out.markers.push_back(std::move(marker));
      skip();
    } while (take(","));
    if (kind == Kind::kUntil && take("without")) {
      TANDEM_TRY(never, texts());
      out.never = std::move(never);
    }
    if (!take(")")) return wrong("markers must end with )");
    return out;
  }

  // "a" "b" ...
  Result<std::vector<std::string>> texts() {
    std::vector<std::string> out;
    skip();
    while (take("\"")) {
      TANDEM_TRY(one, quoted());
      if (one.empty()) return wrong("a marker is empty");
      out.push_back(std::move(one));
      skip();
    }
    return out;
  }

  std::string pointer() {
    std::string out;
    if (!take("@")) return out;
    while (!at_end() && peek() != ' ' && peek() != '\n' && peek() != '\t') out += text_[at_++];
    return out;
  }

  // %json? and %json!
  void degree(Expression& out) {
    out.lax = take("?");
    out.strict = !out.lax && take("!");
  }

  // %json {schema} or %json@/pointer {schema}; %json?, %json! and %json (object): see Expression
  Result<Expression> json() {
    Expression out = Expression::of(Kind::kJson);
    degree(out);
    out.pointer = pointer();
    skip();
    out.object = take("(object)");
    TANDEM_TRY(text, schema_text());
    out.text = std::move(text);
    return out;
  }

  // %arguments@/pointer (open = ..., close = ..., ...) {schema}
  Result<Expression> arguments(int depth) {
    Expression out = Expression::of(Kind::kArguments);
    degree(out);
    out.pointer = pointer();
    skip();
    if (!take("(")) return wrong("%arguments needs to know how they are written");
    do {
      skip();
      out.names.push_back(name());
      skip();
      Expression part;
      if (take("=")) {
        if (out.names.back() == "never") {
          TANDEM_TRY(never, texts());
          out.never = std::move(never);
        } else {
          TANDEM_TRY(made, choice(depth + 1));
          part = std::move(made);
        }
      }
      out.parts.push_back(std::move(part));
    } while (take(","));
    if (!take(")")) return wrong("how arguments are written must end with )");
    TANDEM_TRY(text, schema_text());
    out.text = std::move(text);
    return out;
  }

  // %inner@/pointer (lark, json) "definition", %inner@/pointer (lark, utf8, never = "a") "..."
  Result<Expression> inner() {
    Expression out = Expression::of(Kind::kInner);
    out.pointer = pointer();
    skip();
    if (!take("(")) return wrong("%inner needs a kind and a spelling");
    do {
      skip();
      std::string one = name();
      skip();
      if (one != "never") {
        out.names.push_back(std::move(one));
        continue;
      }
      if (!take("=")) return wrong("'never' names texts");
      TANDEM_TRY(never, texts());
      out.never = std::move(never);
    } while (take(","));
    if (!take(")") || out.names.size() != 2) return wrong("%inner needs a kind and a spelling");
    skip();
    if (!take("\"")) return wrong("%inner needs a grammar");
    TANDEM_TRY(text, quoted());
    out.text = std::move(text);
    return out;
  }

  Result<std::string> schema_text() {
    skip();
    if (peek() != '{') return wrong("a schema stands in { }");
    const size_t start = at_;
    int depth = 0;
    bool inside = false;
    for (; !at_end(); ++at_) {
      const char c = peek();
      if (inside) {
        if (c == '\\') ++at_;
        if (c == '"') inside = false;
      } else if (c == '"') {
        inside = true;
      } else if (c == '{') {
        ++depth;
      } else if (c == '}' && --depth == 0) {
        ++at_;
        return std::string(text_.substr(start, at_ - start));
      }
    }
    return wrong("a schema has no end");
  }

  Result<Expression> atom(int depth) {
    if (take("\"")) return text();
    if (peek() == '/') {
      ++at_;
      return regex();
    }
    if (take("(")) {
      TANDEM_TRY(inner, choice(depth + 1));
      if (!take(")")) return wrong("a group has no end");
      return std::move(inner);
    }
    if (take("[")) {  // optional
      Expression out = Expression::of(Kind::kRepeat);
      TANDEM_TRY(inner, choice(depth + 1));
      if (!take("]")) return wrong("an optional part has no end");
      out.max = 1;
      out.parts.push_back(std::move(inner));
      return out;
    }
    if (peek() == '<') {
      Expression out = Expression::of(Kind::kSpecial);
      TANDEM_TRY(spelled, special_text());
      out.text = std::move(spelled);
      return out;
    }
    if (take("%json")) return json();
    if (take("%arguments")) return arguments(depth);
    if (take("%inner")) return inner();
    if (take("%until")) return markers(Kind::kUntil);
    if (take("%without")) return markers(Kind::kWithout);
    Expression out = Expression::of(Kind::kRule);
    out.text = name();
    if (out.text.empty()) return wrong("'" + std::string(1, peek()) + "' was not expected");
    return out;
  }
};

}  // namespace

Result<NodeId> build_lark(FrontEnd& to, std::string_view text) {
  TANDEM_TRY(rules, LarkReader(text).read());
  return build_rules(to, rules, "start", {});
}

Result<NodeId> build_inner_lark(FrontEnd& to, std::string_view text, const InnerText& inner) {
  TANDEM_TRY(rules, LarkReader(text).read());
  return build_rules(to, rules, "start", {.inner = &inner});
}

}  // namespace tandem::grammar
