// Expressions of the template language: recursive descent over the token list. The statements'
// parser builds on this.
//
// An error is noted once and the parser then runs dry: every loop stops at the end token, which
// `fail` moves to.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace tandem::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Kind = Node::Kind;
  static constexpr int kMaxNesting = 120;
  static constexpr int kMaxChain = 400;

  const Token& now() const { return tokens_[at_]; }
  const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is(TokenKind kind) const { return now().kind == kind; }
  bool is_op(std::string_view op) const { return is(TokenKind::kOperator) && now().text == op; }
  bool is_name(std::string_view name) const { return is(TokenKind::kName) && now().text == name; }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  void fail(const std::string& message) {
    if (error_) return;
    error_ = Error{400, "invalid_chat_template",
                   "chat template line " + std::to_string(now().line) + ": " + message};
    at_ = tokens_.size() - 1;
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail("expected '" + std::string(op) + "'");
  }
  std::string expect_name() {
    if (!is(TokenKind::kName)) {
      fail("expected a name");
      return {};
    }
    std::string name = now().text;
    next();
    return name;
  }
  NodePtr make(Kind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = now().line;
    return node;
  }
  // Every wrapping makes the tree one deeper: chains like a+a+a+... are bounded along each path.
  NodePtr unary(Kind kind, NodePtr operand) {
    if (++chain_ > kMaxChain) fail("an expression is too long");
    NodePtr node = make(kind);
    node->children.push_back(std::move(operand));
    return node;
  }
  NodePtr binary(Kind kind, std::string name, NodePtr left, NodePtr right) {
    NodePtr node = unary(kind, std::move(left));
    node->children.push_back(std::move(right));
    node->name = std::move(name);
    return node;
  }
  // Counts nesting; false (and an error) when the template nests too deeply.
  struct Nesting {
    explicit Nesting(ExpressionParser& p) : parser(p) {
      ok = ++parser.nesting_ <= kMaxNesting;
      if (!ok) parser.fail("the template nests too deeply");
    }
    ~Nesting() { --parser.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ExpressionParser& parser;
    bool ok;
  };

  NodePtr expression(bool with_condition = true);
  bool ends_tuple() const;
  NodePtr tuple_expression(bool with_condition = true);
  NodePtr or_expression();
  NodePtr and_expression();
  NodePtr not_expression();
  std::string compare_operator();
  NodePtr compare();
  template <typename Operand>
  NodePtr left_associative(std::initializer_list<std::string_view> ops, const Operand& operand);
  NodePtr sum();
  NodePtr concat();
  NodePtr product();
  NodePtr power();
  NodePtr sign(bool with_filters);
  NodePtr constant(Value value) const;
  NodePtr primary();
  NodePtr name();
  NodePtr parenthesis();
  NodePtr list();
  NodePtr dict();
  NodePtr postfix(NodePtr node);
  NodePtr subscript(NodePtr base);
  void arguments(Node& node);
  NodePtr call(NodePtr callee);
  NodePtr filters(NodePtr input, bool first_bare = false);
  NodePtr test(NodePtr value);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int chain_ = 0;
  std::optional<Error> error_;
};

}  // namespace tandem::text::jinja
