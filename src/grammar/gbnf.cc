// GBNF, the grammars of llama.cpp.
#include "grammar/expression.h"

namespace tandem::grammar {
namespace {

using Kind = Expression::Kind;

class GbnfReader : GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Result<GrammarRules> read() {
    GrammarRules rules;
    skip(true);
    while (!at_end()) {
      const std::string rule = name();
      if (rule.empty()) return wrong("a rule must begin with its name");
      skip(false);
      if (!take("::=")) return wrong("'::=' must follow the name of a rule");
      skip(true);
      TANDEM_TRY(body, choice(0));
      if (!at_end() && peek() != '\n') return wrong("something is wrong behind a rule");
      if (!rules.emplace(rule, GrammarRule{std::move(body)}).second)
        return wrong("the rule '" + rule + "' is defined twice");
      skip(true);
    }
    return rules;
  }

 private:
  void skip(bool lines) {
    while (!at_end()) {
      if (peek() == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || (lines && peek() == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  Result<Expression> choice(int depth) {
    if (depth > kExpressionDepth) return wrong("groups are nested too deeply");
    Expression out = Expression::of(Kind::kChoice);
    while (true) {
      TANDEM_TRY(part, sequence(depth));
      out.parts.push_back(std::move(part));
      if (!take("|")) break;
      skip(true);
    }
    if (out.parts.size() == 1) return std::move(out.parts.front());
    return out;
  }

  Result<Expression> sequence(int depth) {
    Expression out;
    while (!at_end() && peek() != '|' && peek() != ')' && peek() != '\n') {
      TANDEM_TRY(part, atom(depth));
      skip(depth > 0);
      TANDEM_TRY(repeated, repetition(std::move(part), depth));
      out.parts.push_back(std::move(repeated));
    }
    return out;
  }

  Result<Expression> repetition(Expression inner, int depth) {
    for (int count = 0;; ++count) {
      uint32_t min = 0;
      uint32_t max = kUnbounded;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (peek() == '{') {
        TANDEM_CHECK(braces(min, max));
      } else {
        return inner;
      }
      if (count == kMostRepetitions) return wrong("too many repetitions follow one another");
      Expression out = Expression::of(Kind::kRepeat);
      out.min = min;
      out.max = max;
      out.parts.push_back(std::move(inner));
      inner = std::move(out);
      skip(depth > 0);
    }
  }

  Result<Expression> atom(int depth) {
    if (take("\"")) {
      Expression out = Expression::of(Kind::kText);
      TANDEM_TRY(text, quoted());
      out.text = std::move(text);
      return out;
    }
    if (peek() == '[') {
      Expression out = Expression::of(Kind::kPattern);
      TANDEM_TRY(set, bracket());
      out.pattern = std::move(set);
      return out;
    }
    if (take(".")) {
      Expression out = Expression::of(Kind::kPattern);
      out.pattern.kind = Pattern::Kind::kSet;
      out.pattern.set = CodePoints::all();
      return out;
    }
    if (take("(")) {
      skip(true);
      TANDEM_TRY(inner, choice(depth + 1));
      if (!take(")")) return wrong("a group has no end");
      return std::move(inner);
    }
    if (peek() == '<') {
      Expression out = Expression::of(Kind::kSpecial);
      TANDEM_TRY(text, special_text());
      out.text = std::move(text);
      return out;
    }
    Expression out = Expression::of(Kind::kRule);
    out.text = name();
    if (out.text.empty()) return wrong("'" + std::string(1, peek()) + "' was not expected");
    return out;
  }
};

}  // namespace

Result<NodeId> build_gbnf(FrontEnd& to, std::string_view text) {
  TANDEM_TRY(rules, GbnfReader(text).read());
  return build_rules(to, rules, "root", {.fold = true});
}

Result<NodeId> build_inner_gbnf(FrontEnd& to, std::string_view text, const InnerText& inner) {
  TANDEM_TRY(rules, GbnfReader(text).read());
  return build_rules(to, rules, "root", {.fold = true, .inner = &inner});
}

}  // namespace tandem::grammar
