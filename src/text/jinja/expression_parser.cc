#include "text/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>

namespace tandem::text::jinja {

NodePtr ExpressionParser::expression(bool with_condition) {
  const Nesting nesting(*this);
  if (!nesting.ok) return make(Kind::kConstant);
  const int chain = chain_;
  NodePtr value = or_expression();
  while (with_condition && skip_name("if")) {
    NodePtr node = unary(Kind::kCondition, or_expression());
    node->children.push_back(std::move(value));
    node->children.push_back(skip_name("else") ? expression() : nullptr);
    value = std::move(node);
  }
  chain_ = chain;
  return value;
}

bool ExpressionParser::ends_tuple() const {
  return is(TokenKind::kVariableEnd) || is(TokenKind::kBlockEnd) || is(TokenKind::kEnd) ||
         is_op(")");
}

// An expression, or several with commas between: a tuple.
NodePtr ExpressionParser::tuple_expression(bool with_condition) {
  NodePtr first = expression(with_condition);
  if (!is_op(",")) return first;
  NodePtr node = unary(Kind::kTuple, std::move(first));
  while (skip_op(",") && !ends_tuple()) node->children.push_back(expression(with_condition));
  return node;
}

NodePtr ExpressionParser::or_expression() {
  NodePtr left = and_expression();
  while (skip_name("or")) left = binary(Kind::kOr, "", std::move(left), and_expression());
  return left;
}
NodePtr ExpressionParser::and_expression() {
  NodePtr left = not_expression();
  while (skip_name("and")) left = binary(Kind::kAnd, "", std::move(left), not_expression());
  return left;
}
NodePtr ExpressionParser::not_expression() {
  if (!is_name("not")) return compare();
  const Nesting nesting(*this);
  if (!nesting.ok) return make(Kind::kConstant);
  next();
  return unary(Kind::kNot, not_expression());
}

std::string ExpressionParser::compare_operator() {
  static constexpr std::string_view kOps[] = {"==", "!=", "<", ">", "<=", ">="};
  for (const std::string_view op : kOps) {
    if (skip_op(op)) return std::string(op);
  }
  if (skip_name("in")) return "in";
  if (is_name("not") && peek().kind == TokenKind::kName && peek().text == "in") {
    next();
    next();
    return "not in";
  }
  return {};
}

NodePtr ExpressionParser::compare() {
  NodePtr left = sum();
  std::string op = compare_operator();
  if (op.empty()) return left;
  NodePtr node = unary(Kind::kCompare, std::move(left));
  while (!op.empty()) {
    node->names.push_back(std::move(op));
    node->children.push_back(sum());
    op = compare_operator();
  }
  return node;
}

template <typename Operand>
NodePtr ExpressionParser::left_associative(std::initializer_list<std::string_view> ops,
                                           const Operand& operand) {
  NodePtr left = operand();
  for (;;) {
    const auto op = std::find_if(ops.begin(), ops.end(), [&](auto o) { return is_op(o); });
    if (op == ops.end()) return left;
    next();
    left = binary(Kind::kBinary, std::string(*op), std::move(left), operand());
  }
}
NodePtr ExpressionParser::sum() {
  return left_associative({"+", "-"}, [this] { return concat(); });
}
NodePtr ExpressionParser::concat() {
  NodePtr first = product();
  if (!is_op("~")) return first;
  NodePtr node = unary(Kind::kConcat, std::move(first));
  while (skip_op("~")) node->children.push_back(product());
  return node;
}
NodePtr ExpressionParser::product() {
  return left_associative({"*", "/", "//", "%"}, [this] { return power(); });
}
NodePtr ExpressionParser::power() {
  return left_associative({"**"}, [this] { return sign(true); });
}

NodePtr ExpressionParser::sign(bool with_filters) {
  const Nesting nesting(*this);
  if (!nesting.ok) return make(Kind::kConstant);
  NodePtr node;
  if (skip_op("-")) {
    node = unary(Kind::kNegate, sign(false));
  } else if (skip_op("+")) {
    node = unary(Kind::kPlus, sign(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  if (!with_filters) return node;
  for (;;) {
    if (is_op("|")) {
      node = filters(std::move(node));
    } else if (is_name("is")) {
      node = test(std::move(node));
    } else if (is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::constant(Value value) const {
  NodePtr node = make(Kind::kConstant);
  node->constant = std::move(value);
  return node;
}

NodePtr ExpressionParser::primary() {
  switch (now().kind) {
    case TokenKind::kName:
      return name();
    case TokenKind::kString: {
      std::string value;
      while (is(TokenKind::kString)) {
        value += now().text;
        next();
      }
      return constant(Value::string(std::move(value)));
    }
    case TokenKind::kInteger: {
      int64_t value = 0;
      const std::string& digits = now().text;
      const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (end.ec != std::errc()) fail("an integer is too large");
      next();
      return constant(Value::integer(value));
    }
    case TokenKind::kFloat: {
      const double value = std::strtod(now().text.c_str(), nullptr);
      next();
      return constant(Value(value));
    }
    default:
      break;
  }
  if (skip_op("(")) return parenthesis();
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  fail("expected an expression");
  return make(Kind::kConstant);
}

NodePtr ExpressionParser::name() {
  const std::string text = now().text;
  next();
  if (text == "true" || text == "True") return constant(Value(true));
  if (text == "false" || text == "False") return constant(Value(false));
  if (text == "none" || text == "None") return constant(Value::none());
  NodePtr node = make(Kind::kName);
  node->name = text;
  return node;
}

NodePtr ExpressionParser::parenthesis() {
  if (skip_op(")")) return make(Kind::kTuple);
  NodePtr node = tuple_expression();
  expect_op(")");
  return node;
}

NodePtr ExpressionParser::list() {
  NodePtr node = make(Kind::kList);
  next();
  while (!is_op("]") && !is(TokenKind::kEnd)) {
    node->children.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return node;
}

NodePtr ExpressionParser::dict() {
  NodePtr node = make(Kind::kDict);
  next();
  while (!is_op("}") && !is(TokenKind::kEnd)) {
    node->children.push_back(expression());
    expect_op(":");
    node->children.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return node;
}

NodePtr ExpressionParser::postfix(NodePtr node) {
  for (;;) {
    if (skip_op(".")) {
      if (is(TokenKind::kInteger)) {
        node = binary(Kind::kItem, "", std::move(node), primary());
      } else {
        node = unary(Kind::kAttribute, std::move(node));
        node->name = expect_name();
      }
    } else if (skip_op("[")) {
      node = subscript(std::move(node));
    } else if (is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::subscript(NodePtr base) {
  NodePtr node = unary(Kind::kSlice, std::move(base));
  bool slice = false;
  NodePtr parts[3];
  int part = 0;
  while (!is_op("]") && !is(TokenKind::kEnd)) {
    if (skip_op(":")) {
      slice = true;
      if (++part > 2) fail("a slice has at most three parts");
      if (part > 2) break;
    } else if (parts[part]) {
      fail("expected ']'");
    } else {
      parts[part] = expression();
    }
  }
  expect_op("]");
  if (!slice) {
    if (!parts[0]) fail("expected an index");
    node->kind = Kind::kItem;
    node->children.push_back(std::move(parts[0]));
    return node;
  }
  for (NodePtr& p : parts) node->children.push_back(std::move(p));
  return node;
}

void ExpressionParser::arguments(Node& node) {
  expect_op("(");
  while (!is_op(")") && !is(TokenKind::kEnd)) {
    if (is(TokenKind::kName) && peek().kind == TokenKind::kOperator && peek().text == "=") {
      std::string key = expect_name();
      next();
      node.keywords.emplace_back(std::move(key), expression());
    } else {
      if (is_op("*") || is_op("**")) fail("argument unpacking is not supported");
      node.children.push_back(expression());
    }
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

NodePtr ExpressionParser::call(NodePtr callee) {
  NodePtr node = unary(Kind::kCall, std::move(callee));
  arguments(*node);
  return node;
}

// `input | a | b(...)`; in a filter block the first name comes without a bar.
NodePtr ExpressionParser::filters(NodePtr input, bool first_bare) {
  while (first_bare || skip_op("|")) {
    first_bare = false;
    NodePtr node = unary(Kind::kFilter, std::move(input));
    node->name = expect_name();
    if (is_op("(")) arguments(*node);
    input = std::move(node);
  }
  return input;
}

NodePtr ExpressionParser::test(NodePtr value) {
  next();
  const bool negate = skip_name("not");
  NodePtr node = unary(Kind::kTest, std::move(value));
  node->name = expect_name();
  if (is_op("(")) {
    arguments(*node);
  } else if (is(TokenKind::kString) || is(TokenKind::kInteger) || is(TokenKind::kFloat) ||
             is_op("[") || is_op("{") ||
             (is(TokenKind::kName) && !is_name("else") && !is_name("or") && !is_name("and") &&
              !is_name("if") && !is_name("is") && !is_name("not") && !is_name("in") &&
              !is_name("recursive"))) {
    node->children.push_back(postfix(primary()));
  }
  return negate ? unary(Kind::kNot, std::move(node)) : std::move(node);
}

}  // namespace tandem::text::jinja
