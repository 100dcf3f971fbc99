#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/expression_parser.h"

namespace tandem::text::jinja {

namespace {

using Body = std::vector<NodePtr>;

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Body> run() {
    Body body = statements({});
    if (error_) return tl::unexpected(std::move(*error_));
    return body;
  }

 private:
  // Until one of `ends` follows a block begin (both left in place) or the template ends.
  Body statements(const std::vector<std::string_view>& ends) {
    Body body;
    const Nesting nesting(*this);
    if (!nesting.ok) return body;
    const int chain = chain_;
    while (!is(TokenKind::kEnd)) {
      chain_ = chain;
      if (is(TokenKind::kText)) {
        NodePtr node = make(Kind::kText);
        node->name = now().text;
        next();
        body.push_back(std::move(node));
      } else if (is(TokenKind::kVariableBegin)) {
        next();
        body.push_back(unary(Kind::kOutput, tuple_expression()));
        if (!is(TokenKind::kVariableEnd)) fail("expected }}");
        next();
      } else if (is(TokenKind::kBlockBegin)) {
        if (peek().kind == TokenKind::kName &&
            std::find(ends.begin(), ends.end(), peek().text) != ends.end()) {
          return body;
        }
        next();
        if (NodePtr node = statement()) body.push_back(std::move(node));
      } else {
        fail("unexpected end of a tag");
      }
    }
    if (!ends.empty()) fail("expected {% " + std::string(ends.back()) + " %}");
    return body;
  }

  void block_end() {
    if (!is(TokenKind::kBlockEnd)) fail("expected %}");
    next();
  }
  // Body up to {% end %}, which is consumed whole.
  Body body_until(std::string_view end) {
    block_end();
    Body body = statements({end});
    next();
    next();
    block_end();
    return body;
  }

  NodePtr statement() {
    const std::string word = expect_name();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro_statement();
    if (word == "call") return call_statement();
    if (word == "filter") return filter_statement();
    if (word == "with") return with_statement();
    if (word == "generation") {
      NodePtr node = make(Kind::kGroup);
      node->bodies.push_back(body_until("endgeneration"));
      return node;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail("'" + word + "' outside a loop");
      NodePtr node = make(word == "break" ? Kind::kBreak : Kind::kContinue);
      block_end();
      return node;
    }
    fail("unknown tag '" + word + "'");
    return nullptr;
  }

  NodePtr if_statement() {
    NodePtr node = make(Kind::kIf);
    for (;;) {
      node->children.push_back(tuple_expression());
      block_end();
      node->bodies.push_back(statements({"elif", "else", "endif"}));
      next();
      if (skip_name("elif")) continue;
      if (is_name("else")) {
        next();
        node->bodies.push_back(body_until("endif"));
      } else {
        next();
        block_end();
      }
      return node;
    }
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool wrapped = skip_op("(");
    do {
      if (!names.empty() && !is(TokenKind::kName)) break;
      names.push_back(expect_name());
    } while (skip_op(","));
    if (wrapped) expect_op(")");
    return names;
  }

  NodePtr for_statement() {
    NodePtr node = make(Kind::kFor);
    node->names = targets();
    if (!skip_name("in")) fail("expected 'in'");
    node->children.push_back(tuple_expression(false));
    node->children.push_back(skip_name("if") ? expression() : nullptr);
    node->recursive = skip_name("recursive");
    block_end();
    ++loops_;
    node->bodies.push_back(statements({"else", "endfor"}));
    --loops_;
    next();
    if (skip_name("else")) {
      node->bodies.push_back(body_until("endfor"));
    } else {
      next();
      block_end();
    }
    return node;
  }

  NodePtr set_statement() {
    NodePtr node = make(Kind::kSet);
    do {
      std::string name = expect_name();
      if (skip_op(".")) name += "." + expect_name();
      node->names.push_back(std::move(name));
    } while (skip_op(","));
    if (skip_op("=")) {
      node->children.push_back(tuple_expression());
      block_end();
      return node;
    }
    if (node->names.size() != 1) fail("expected '='");
    node->kind = Kind::kSetBlock;
    node->children.push_back(is_op("|") ? filters(nullptr) : nullptr);
    node->bodies.push_back(body_until("endset"));
    return node;
  }

  void parameters(Node& node) {
    expect_op("(");
    bool defaults = false;
    while (!is_op(")") && !is(TokenKind::kEnd)) {
      node.names.push_back(expect_name());
      if (skip_op("=")) {
        node.children.push_back(expression());
        defaults = true;
      } else if (defaults) {
        fail("a parameter without a default follows one with a default");
      }
      if (!skip_op(",")) break;
    }
    expect_op(")");
  }

  // `break` and `continue` do not reach out of a macro.
  Body function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = body_until(end);
    loops_ = loops;
    return body;
  }

  NodePtr macro_statement() {
    NodePtr node = make(Kind::kMacro);
    node->name = expect_name();
    parameters(*node);
    node->bodies.push_back(function_body("endmacro"));
    return node;
  }

  NodePtr call_statement() {
    NodePtr node = make(Kind::kCallBlock);
    node->children.push_back(nullptr);
    if (is_op("(")) parameters(*node);
    NodePtr call = expression();
    if (call && call->kind != Kind::kCall) fail("expected a call");
    node->children[0] = std::move(call);
    node->bodies.push_back(function_body("endcall"));
    return node;
  }

  NodePtr filter_statement() {
    NodePtr node = make(Kind::kFilterBlock);
    node->children.push_back(filters(nullptr, true));
    node->bodies.push_back(body_until("endfilter"));
    return node;
  }

  NodePtr with_statement() {
    NodePtr node = make(Kind::kWith);
    while (is(TokenKind::kName)) {
      node->names.push_back(expect_name());
      expect_op("=");
      node->children.push_back(expression());
      if (!skip_op(",")) break;
    }
    node->bodies.push_back(body_until("endwith"));
    return node;
  }

  int loops_ = 0;
};

}  // namespace

Result<Body> parse(std::string_view source) {
  TANDEM_TRY(tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace tandem::text::jinja
