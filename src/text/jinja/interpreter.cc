#include "text/jinja/interpreter.h"

#include <algorithm>

#include "text/jinja/format.h"

// Scopes follow the reference: `set` assigns in the innermost scope, `if` opens none, every pass of
// a `for` opens a fresh one, a macro sees the variables of where it was written.

namespace tandem::text::jinja {

namespace {

using Body = std::vector<NodePtr>;
using Kind = Node::Kind;

struct Scope {
  const Scope* parent = nullptr;
  Variables variables;

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope; scope = scope->parent) {
      for (const auto& [key, value] : scope->variables) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(std::string(name), std::move(value));
  }
};

enum class Flow { kNext, kBreak, kContinue };

class Interpreter : public Runtime {
 public:
  explicit Interpreter(const RenderOptions& options) : Runtime(options) {}
  ~Interpreter() {
    for (auto& made : namespaces_) made->fields.items.clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<std::string> run(const Body& body, const Variables& context) {
    context_.variables = context;
    root_.parent = &context_;
    std::string out;
    execute(body, root_, out);
    if (failed()) return tl::unexpected(take_error());
    return out;
  }

 private:
  // Counts nested evaluations, macro calls included.
  struct Depth {
    explicit Depth(Interpreter& i) : interpreter(i) {
      ok = ++interpreter.depth_ <= interpreter.options().limits.depth;
      if (!ok) interpreter.fail("the template recurses too deeply");
    }
    ~Depth() { --interpreter.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    Interpreter& interpreter;
    bool ok;
  };

  void write(std::string& out, std::string_view text) {
    if (!charge(1 + text.size() / 64)) return;
    if (text.size() >
        options().limits.string_bytes - std::min(out.size(), options().limits.string_bytes)) {
      fail("the output is too long");
      return;
    }
    out.append(text);
  }

  // --- statements ---

  Flow execute(const Body& body, Scope& scope, std::string& out) {
    const Depth depth(*this);
    if (!depth.ok) return Flow::kNext;
    for (const NodePtr& node : body) {
      if (!charge(1)) return Flow::kNext;
      set_line(node->line);
      const Flow flow = execute(*node, scope, out);
      if (flow != Flow::kNext || failed()) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Node& node, Scope& scope, std::string& out) {
    switch (node.kind) {
      case Kind::kText:
        write(out, node.name);
        break;
      case Kind::kOutput: {
        const Value value = evaluate(*node.children[0], scope);
        if (value.is_string()) {
          write(out, value.str());
        } else if (!failed()) {
          write(out, to_str(value));
        }
        break;
      }
      case Kind::kIf:
        return run_if(node, scope, out);
      case Kind::kFor:
        run_for(node, evaluate(*node.children[0], scope), scope, out, 0);
        break;
      case Kind::kSet:
        assign_all(node.names, evaluate(*node.children[0], scope), scope);
        break;
      case Kind::kSetBlock: {
        Value value = capture(node.bodies[0], scope);
        if (node.children[0]) value = filtered(*node.children[0], value, scope);
        assign(node.names[0], std::move(value), scope);
        break;
      }
      case Kind::kMacro:
        scope.set(node.name, function(node, Function::Kind::kMacro, scope));
        break;
      case Kind::kCallBlock: {
        const Value caller = function(node, Function::Kind::kCaller, scope);
        write(out, to_str(call(*node.children[0], scope, &caller)));
        break;
      }
      case Kind::kFilterBlock:
        write(out, to_str(filtered(*node.children[0], capture(node.bodies[0], scope), scope)));
        break;
      case Kind::kWith: {
        Scope inner;
        inner.parent = &scope;
        for (size_t i = 0; i < node.names.size(); ++i) {
          inner.set(node.names[i], evaluate(*node.children[i], scope));
        }
        return execute(node.bodies[0], inner, out);
      }
      case Kind::kGroup:
        return execute(node.bodies[0], scope, out);
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
      default:
        fail("unexpected statement");
    }
    return Flow::kNext;
  }

  Flow run_if(const Node& node, Scope& scope, std::string& out) {
    for (size_t i = 0; i < node.children.size(); ++i) {
      const bool holds = evaluate(*node.children[i], scope).truthy();
      if (failed()) return Flow::kNext;
      if (holds) return execute(node.bodies[i], scope, out);
    }
    if (node.bodies.size() > node.children.size()) return execute(node.bodies.back(), scope, out);
    return Flow::kNext;
  }

  void run_for(const Node& node, const Value& iterable, Scope& scope, std::string& out, int depth) {
    if (failed()) return;
    if (iterable.is_none()) {
      fail("None cannot be iterated over");
      return;
    }
    std::vector<Value> items = iterate(iterable);
    if (node.children[1]) {
      std::vector<Value> kept;
      for (Value& item : items) {
        Scope inner;
        inner.parent = &scope;
        assign_all(node.names, item, inner);
        if (evaluate(*node.children[1], inner).truthy()) kept.push_back(std::move(item));
        if (failed()) return;
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      if (node.bodies.size() > 1) execute(node.bodies[1], scope, out);
      return;
    }
    auto loop = std::make_shared<LoopState>();
    loop->items = std::make_shared<const List>(List{std::move(items), false, 1});
    loop->depth = depth;
    loop->recursive = node.recursive ? &node : nullptr;
    for (size_t i = 0; i < loop->items->items.size(); ++i) {
      loop->index = i;
      Scope inner;
      inner.parent = &scope;
      inner.variables.emplace_back("loop", Value(loop));
      assign_all(node.names, loop->items->items[i], inner);
      if (failed()) return;
      const Flow flow = execute(node.bodies[0], inner, out);
      if (flow == Flow::kBreak || failed()) return;
    }
  }

  void assign(const std::string& target, Value value, Scope& scope) {
    if (failed()) return;
    const size_t dot = target.find('.');
    if (dot == std::string::npos) {
      scope.set(target, std::move(value));
      return;
    }
    const Value* holder = scope.find(std::string_view(target).substr(0, dot));
    if (!holder || !holder->is<std::shared_ptr<Namespace>>()) {
      fail("'" + target.substr(0, dot) + "' is not a namespace, so its attributes cannot be set");
      return;
    }
    Dict& fields = holder->as<std::shared_ptr<Namespace>>()->fields;
    charge(1 + fields.items.size() / 8);
    fields.set(std::string_view(target).substr(dot + 1), std::move(value));
  }

  void assign_all(const std::vector<std::string>& targets, const Value& value, Scope& scope) {
    if (failed()) return;
    if (targets.size() == 1) {
      assign(targets[0], value, scope);
      return;
    }
    const std::vector<Value> parts = iterate(value);
    if (!failed() && parts.size() != targets.size()) {
      fail("cannot spread " + std::to_string(parts.size()) + " values over " +
           std::to_string(targets.size()) + " names");
      return;
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(targets[i], parts[i], scope);
  }

  Value capture(const Body& body, Scope& scope) {
    Scope inner;
    inner.parent = &scope;
    std::string text;
    execute(body, inner, text);
    return make_string(std::move(text));
  }

  Value function(const Node& node, Function::Kind kind, const Scope& scope) {
    auto made = std::make_shared<Function>();
    made->kind = kind;
    made->name = node.name;
    made->node = &node;
    // Scopes below the top do not outlive the macro's value: their variables are copied, inner ones
    // first.
    for (const Scope* at = &scope; at && at != &root_ && at != &context_; at = at->parent) {
      charge(1 + at->variables.size());
      made->captured.insert(made->captured.end(), at->variables.begin(), at->variables.end());
    }
    return Value(std::move(made));
  }

  // --- calls ---

  Arguments arguments_of(const Node& node, const Scope& scope) {
    Arguments arguments;
    arguments.positional.reserve(node.children.size() - 1);
    for (size_t i = 1; i < node.children.size(); ++i) {
      arguments.positional.push_back(evaluate(*node.children[i], scope));
    }
    for (const auto& [name, child] : node.keywords) {
      arguments.keywords.emplace_back(name, evaluate(*child, scope));
    }
    return arguments;
  }

  Value call(const Node& node, const Scope& scope, const Value* caller) {
    const Node& callee = *node.children[0];
    const Value target = evaluate(callee, scope);
    const Arguments arguments = arguments_of(node, scope);
    if (failed()) return {};
    set_line(node.line);
    if (target.is<std::shared_ptr<LoopState>>()) return call_loop(target, arguments, scope);
    if (!target.is<std::shared_ptr<Function>>()) {
      const std::string name = callee.name.empty() ? "the value" : "'" + callee.name + "'";
      return fail(name + (target.is_undefined() ? " is undefined" : " is not callable"));
    }
    const Function& function = *target.as<std::shared_ptr<Function>>();
    switch (function.kind) {
      case Function::Kind::kGlobal:
        return global(function.name, arguments);
      case Function::Kind::kMethod:
        return method(function.self, function.name, arguments);
      default:
        return call_macro(function, arguments, caller);
    }
  }

  Value call_loop(const Value& target, const Arguments& arguments, const Scope& scope) {
    const LoopState& loop = *target.as<std::shared_ptr<LoopState>>();
    if (!loop.recursive) return fail("the loop is not recursive");
    if (arguments.positional.size() != 1) return fail("a recursive loop takes one value");
    const Depth depth(*this);
    if (!depth.ok) return {};
    Scope inner;
    inner.parent = &scope;
    std::string text;
    run_for(*loop.recursive, arguments.positional[0], inner, text, loop.depth + 1);
    return make_string(std::move(text));
  }

  Value call_macro(const Function& function, const Arguments& arguments, const Value* caller) {
    const Depth depth(*this);
    if (!depth.ok || !charge(4)) return {};
    const Node& node = *function.node;
    const size_t first_default_child = function.kind == Function::Kind::kCaller ? 1 : 0;
    const size_t defaults = node.children.size() - first_default_child;
    const size_t required = node.names.size() - defaults;

    Scope captured;
    captured.parent = &root_;
    for (const auto& [name, value] : function.captured) {
      if (std::none_of(captured.variables.begin(), captured.variables.end(),
                       [&](const auto& v) { return v.first == name; })) {
        captured.variables.emplace_back(name, value);
      }
    }
    Scope inner;
    inner.parent = &captured;
    if (arguments.positional.size() > node.names.size()) {
      return fail("macro '" + node.name + "' takes at most " + std::to_string(node.names.size()) +
                  " arguments");
    }
    for (const auto& [name, value] : arguments.keywords) {
      if (name == "caller" ||
          std::find(node.names.begin(), node.names.end(), name) != node.names.end()) {
        continue;
      }
      return fail("macro '" + node.name + "' has no argument '" + name + "'");
    }
    for (size_t i = 0; i < node.names.size(); ++i) {
      if (const Value* given = arguments.find(i, node.names[i])) {
        inner.set(node.names[i], *given);
      } else if (i >= required) {
        inner.set(node.names[i],
                  evaluate(*node.children[first_default_child + i - required], inner));
      } else {
        inner.set(node.names[i], Value::undefined(node.names[i]));
      }
    }
    if (caller) inner.set("caller", *caller);
    std::string text;
    execute(node.bodies[0], inner, text);
    return make_string(std::move(text));
  }

  // The chain of filters over `input`, which stands where the innermost has no operand.
  Value filtered(const Node& node, const Value& input, const Scope& scope) {
    const Depth depth(*this);
    if (!depth.ok) return {};
    const Value value = node.children[0] ? filtered(*node.children[0], input, scope) : input;
    const Arguments arguments = arguments_of(node, scope);
    return failed() ? Value() : filter(node.name, value, arguments);
  }

  // --- expressions ---

  Value evaluate(const Node& node, const Scope& scope) {
    const Depth depth(*this);
    if (!depth.ok || !charge(1)) return {};
    switch (node.kind) {
      case Kind::kConstant:
        return node.constant;
      case Kind::kName:
        return variable(node.name, scope);
      case Kind::kList:
      case Kind::kTuple:
        return checked_list(evaluate_all(node, scope), node.kind == Kind::kTuple);
      case Kind::kDict:
        return dict(node, scope);
      case Kind::kAttribute:
        return attribute(evaluate(*node.children[0], scope), node.name);
      case Kind::kItem: {
        const Value base = evaluate(*node.children[0], scope);
        return item(base, evaluate(*node.children[1], scope));
      }
      case Kind::kSlice:
        return slice_of(node, scope);
      case Kind::kCall:
        return call(node, scope, nullptr);
      case Kind::kFilter: {
        const Value input = evaluate(*node.children[0], scope);
        const Arguments arguments = arguments_of(node, scope);
        return failed() ? Value() : filter(node.name, input, arguments);
      }
      case Kind::kTest: {
        const Value input = evaluate(*node.children[0], scope);
        const Arguments arguments = arguments_of(node, scope);
        return Value(!failed() && test(node.name, input, arguments));
      }
      default:
        return operation(node, scope);
    }
  }

  Value operation(const Node& node, const Scope& scope) {
    switch (node.kind) {
      case Kind::kNot:
        return Value(!evaluate(*node.children[0], scope).truthy());
      case Kind::kNegate:
        return negate(evaluate(*node.children[0], scope));
      case Kind::kPlus: {
        const Value value = evaluate(*node.children[0], scope);
        return value.is_number() ? value : fail("unary + needs a number");
      }
      case Kind::kBinary: {
        const Value left = evaluate(*node.children[0], scope);
        return binary(node.name, left, evaluate(*node.children[1], scope));
      }
      case Kind::kAnd:
      case Kind::kOr: {
        Value left = evaluate(*node.children[0], scope);
        if (failed() || left.truthy() == (node.kind == Kind::kOr)) return left;
        return evaluate(*node.children[1], scope);
      }
      case Kind::kCompare: {
        Value left = evaluate(*node.children[0], scope);
        for (size_t i = 0; i < node.names.size(); ++i) {
          Value right = evaluate(*node.children[i + 1], scope);
          if (failed() || !compare(node.names[i], left, right)) return Value(false);
          left = std::move(right);
        }
        return Value(true);
      }
      case Kind::kConcat: {
        std::string text;
        for (const Value& value : evaluate_all(node, scope)) text += to_str(value);
        return make_string(std::move(text));
      }
      case Kind::kCondition:
        if (evaluate(*node.children[0], scope).truthy()) return evaluate(*node.children[1], scope);
        if (failed()) return {};
        return node.children[2] ? evaluate(*node.children[2], scope)
                                : Value::undefined("an if without else");
      default:
        return fail("unexpected expression");
    }
  }

  Value variable(const std::string& name, const Scope& scope) {
    if (const Value* found = scope.find(name)) return *found;
    if (is_global(name)) {
      auto made = std::make_shared<Function>();
      made->name = name;
      return Value(std::move(made));
    }
    return Value::undefined(name);
  }

  std::vector<Value> evaluate_all(const Node& node, const Scope& scope) {
    std::vector<Value> values;
    values.reserve(node.children.size());
    for (const NodePtr& child : node.children) values.push_back(evaluate(*child, scope));
    return values;
  }

  Value dict(const Node& node, const Scope& scope) {
    Dict made;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      const Value key = evaluate(*node.children[i], scope);
      if (failed()) return {};
      if (!key.is_string() && !key.is_number() && !key.is_none()) {
        return fail("a key of a dict must be a string or a number");
      }
      if (!charge(1 + made.items.size() / 8)) return {};
      made.set(key, evaluate(*node.children[i + 1], scope));
    }
    return checked_dict(std::move(made.items));
  }

  Value slice_of(const Node& node, const Scope& scope) {
    const Value base = evaluate(*node.children[0], scope);
    Value parts[3];
    const Value* given[3] = {};
    for (size_t i = 0; i < 3; ++i) {
      if (!node.children[i + 1]) continue;
      parts[i] = evaluate(*node.children[i + 1], scope);
      given[i] = &parts[i];
    }
    return failed() ? Value() : slice(base, given[0], given[1], given[2]);
  }

  Scope context_;
  Scope root_;
  int depth_ = 0;
};

}  // namespace

Result<std::string> render(const Body& body, const Variables& context,
                           const RenderOptions& options) {
  return Interpreter(options).run(body, context);
}

}  // namespace tandem::text::jinja
