#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "text/jinja/lexer.h"

// Recursive descent. An error is noted once and the parser then runs dry: every loop stops at the
// end token, which `fail` moves to.

namespace tandem::text::jinja {

namespace {

constexpr int kMaxNesting = 120;
constexpr int kMaxChain = 400;

using Body = std::vector<NodePtr>;
using Kind = Node::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Body> run() {
    Body body = statements({});
    if (error_) return tl::unexpected(std::move(*error_));
    return body;
  }

 private:
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
    explicit Nesting(Parser& p) : parser(p) {
      ok = ++parser.nesting_ <= kMaxNesting;
      if (!ok) parser.fail("the template nests too deeply");
    }
    ~Nesting() { --parser.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Parser& parser;
    bool ok;
  };

  // --- statements ---

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

  // --- expressions ---

  NodePtr expression(bool with_condition = true) {
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

  bool ends_tuple() const {
    return is(TokenKind::kVariableEnd) || is(TokenKind::kBlockEnd) || is(TokenKind::kEnd) ||
           is_op(")");
  }

  // An expression, or several with commas between: a tuple.
  NodePtr tuple_expression(bool with_condition = true) {
    NodePtr first = expression(with_condition);
    if (!is_op(",")) return first;
    NodePtr node = unary(Kind::kTuple, std::move(first));
    while (skip_op(",") && !ends_tuple()) node->children.push_back(expression(with_condition));
    return node;
  }

  NodePtr or_expression() {
    NodePtr left = and_expression();
    while (skip_name("or")) left = binary(Kind::kOr, "", std::move(left), and_expression());
    return left;
  }
  NodePtr and_expression() {
    NodePtr left = not_expression();
    while (skip_name("and")) left = binary(Kind::kAnd, "", std::move(left), not_expression());
    return left;
  }
  NodePtr not_expression() {
    if (!is_name("not")) return compare();
    const Nesting nesting(*this);
    if (!nesting.ok) return make(Kind::kConstant);
    next();
    return unary(Kind::kNot, not_expression());
  }

  std::string compare_operator() {
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

  NodePtr compare() {
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
  NodePtr left_associative(std::initializer_list<std::string_view> ops, const Operand& operand) {
    NodePtr left = operand();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [&](auto o) { return is_op(o); });
      if (op == ops.end()) return left;
      next();
      left = binary(Kind::kBinary, std::string(*op), std::move(left), operand());
    }
  }
  NodePtr sum() {
    return left_associative({"+", "-"}, [this] { return concat(); });
  }
  NodePtr concat() {
    NodePtr first = product();
    if (!is_op("~")) return first;
    NodePtr node = unary(Kind::kConcat, std::move(first));
    while (skip_op("~")) node->children.push_back(product());
    return node;
  }
  NodePtr product() {
    return left_associative({"*", "/", "//", "%"}, [this] { return power(); });
  }
  NodePtr power() {
    return left_associative({"**"}, [this] { return sign(true); });
  }

  NodePtr sign(bool with_filters) {
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

  NodePtr constant(Value value) const {
    NodePtr node = make(Kind::kConstant);
    node->constant = std::move(value);
    return node;
  }

  NodePtr primary() {
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

  NodePtr name() {
    const std::string text = now().text;
    next();
    if (text == "true" || text == "True") return constant(Value(true));
    if (text == "false" || text == "False") return constant(Value(false));
    if (text == "none" || text == "None") return constant(Value::none());
    NodePtr node = make(Kind::kName);
    node->name = text;
    return node;
  }

  NodePtr parenthesis() {
    if (skip_op(")")) return make(Kind::kTuple);
    NodePtr node = tuple_expression();
    expect_op(")");
    return node;
  }

  NodePtr list() {
    NodePtr node = make(Kind::kList);
    next();
    while (!is_op("]") && !is(TokenKind::kEnd)) {
      node->children.push_back(expression());
      if (!skip_op(",")) break;
    }
    expect_op("]");
    return node;
  }

  NodePtr dict() {
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

  NodePtr postfix(NodePtr node) {
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

  NodePtr subscript(NodePtr base) {
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

  void arguments(Node& node) {
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

  NodePtr call(NodePtr callee) {
    NodePtr node = unary(Kind::kCall, std::move(callee));
    arguments(*node);
    return node;
  }

  // `input | a | b(...)`; in a filter block the first name comes without a bar.
  NodePtr filters(NodePtr input, bool first_bare = false) {
    while (first_bare || skip_op("|")) {
      first_bare = false;
      NodePtr node = unary(Kind::kFilter, std::move(input));
      node->name = expect_name();
      if (is_op("(")) arguments(*node);
      input = std::move(node);
    }
    return input;
  }

  NodePtr test(NodePtr value) {
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int chain_ = 0;
  int loops_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<Body> parse(std::string_view source) {
  TANDEM_TRY(tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace tandem::text::jinja
