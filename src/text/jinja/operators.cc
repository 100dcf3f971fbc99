#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {
std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }
std::string type_of(const Value& value) { return std::string(value.type_name()); }
}  // namespace

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : keywords) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Runtime::fail(std::string message) {
  if (!error_) {
    error_ = Error{400, "chat_template_error",
                   "chat template line " + std::to_string(line_) + ": " + std::move(message)};
  }
  return {};
}

Value Runtime::raise(std::string message) {
  if (!error_) error_ = Error{400, "chat_template_error", std::move(message)};
  return {};
}

bool Runtime::charge(size_t steps) {
  if (error_) return false;
  steps_ += static_cast<int64_t>(steps);
  if (steps_ > options_.limits.steps) fail("the template takes too many steps");
  return !error_;
}

Value Runtime::make_string(std::string text) {
  if (text.size() > options_.limits.string_bytes) return fail("a string is too long");
  if (!charge(1 + text.size() / 64)) return {};
  return Value::string(std::move(text));
}

size_t Runtime::length_of(std::string_view text) const {
  size_t count = count_code_points(text);
  if (options_.sentinel.empty()) return count;
  for (size_t i = text.find(options_.sentinel); i != std::string_view::npos;
       i = text.find(options_.sentinel, i + options_.sentinel.size())) {
    --count;
  }
  return count;
}

Value Runtime::checked_list(std::vector<Value> items, bool tuple) {
  if (!charge(1 + items.size() / 4)) return {};
  Value list = Value::list(std::move(items), tuple);
  if (list.depth() > kMaxValueDepth) return fail("a list nests too deeply");
  return list;
}

Value Runtime::checked_dict(std::vector<std::pair<Value, Value>> items) {
  if (!charge(1 + items.size() / 4)) return {};
  Value dict = Value::dict(std::move(items));
  if (dict.depth() > kMaxValueDepth) return fail("a dict nests too deeply");
  return dict;
}

namespace {

Value integer_arithmetic(Runtime& runtime, char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    default: {  // floor division and modulo take the divisor's sign
      if (b == 0) return runtime.fail("division by zero");
      if (a == std::numeric_limits<int64_t>::min() && b == -1) {
        overflow = true;
        break;
      }
      int64_t quotient = a / b;
      int64_t rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        --quotient;
        rest += b;
      }
      result = op == '%' ? rest : quotient;
    }
  }
  if (overflow) return runtime.fail("an integer is too large");
  return Value::integer(result);
}

Value integer_power(Runtime& runtime, int64_t base, int64_t exponent) {
  int64_t result = 1;
  // Any base beyond +-1 overflows long before 64 factors.
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result))
      return runtime.fail("an integer is too large");
  }
  return Value::integer(result);
}

Value arithmetic(Runtime& runtime, std::string_view op, const Value& left, const Value& right) {
  const bool integral = left.is_integral() && right.is_integral();
  const double a = left.as_real();
  const double b = right.as_real();
  if (op == "/") return b == 0 ? runtime.fail("division by zero") : Value(a / b);
  if (op == "**") {
    if (integral && right.as_int() >= 0) {
      return integer_power(runtime, left.as_int(), right.as_int());
    }
    return Value(std::pow(a, b));
  }
  if (integral) {
    return integer_arithmetic(runtime, op == "//" ? 'd' : op[0], left.as_int(), right.as_int());
  }
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (b == 0) return runtime.fail("division by zero");
  if (op == "//") return Value(std::floor(a / b));
  const double rest = std::fmod(a, b);
  return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Value repeat(Runtime& runtime, const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const List* list = sequence.as_list();
  const size_t unit = list ? list->items.size() * sizeof(Value) : sequence.str().size();
  if (unit != 0 && static_cast<uint64_t>(times) > runtime.options().limits.string_bytes / unit) {
    return runtime.fail("a repeated sequence is too long");
  }
  if (list) {
    std::vector<Value> items;
    for (int64_t i = 0; i < times && !list->items.empty(); ++i) {
      items.insert(items.end(), list->items.begin(), list->items.end());
    }
    return runtime.checked_list(std::move(items), list->tuple);
  }
  std::string text;
  for (int64_t i = 0; i < times && unit != 0; ++i) text += sequence.str();
  return runtime.make_string(std::move(text));
}

}  // namespace

Value Runtime::binary(std::string_view op, const Value& left, const Value& right) {
  if (failed()) return {};
  if (left.is_number() && right.is_number()) return arithmetic(*this, op, left, right);
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined()) return fail(quoted(*side->as<Undefined>().what) + " is undefined");
  }
  if (op == "+") {
    if (left.is_string() && right.is_string()) {
      if (left.is_markup() || right.is_markup()) {
        const auto part = [](const Value& v) {
          return v.is_markup() ? v.str() : escape_html(v.str());
        };
        return make_string(part(left) + part(right)).as_markup();
      }
      std::string joined;
      joined.reserve(left.str().size() + right.str().size());
      joined.append(left.str()).append(right.str());
      return make_string(std::move(joined));
    }
    const List* a = left.as_list();
    const List* b = right.as_list();
    if (a && b && a->tuple == b->tuple && !a->lazy && !b->lazy) {
      std::vector<Value> items = a->items;
      items.insert(items.end(), b->items.begin(), b->items.end());
      return checked_list(std::move(items), a->tuple);
    }
    if (left.is_string() || right.is_string()) {
      return fail("cannot join " + type_of(left) + " and " + type_of(right) + " with +");
    }
  }
  if (op == "*") {
    if ((left.is_string() || left.as_list()) && right.is_integral()) {
      return repeat(*this, left, right.as_int());
    }
    if ((right.is_string() || right.as_list()) && left.is_integral()) {
      return repeat(*this, right, left.as_int());
    }
  }
  if (op == "%" && left.is_string()) {
    const List* values = right.as_list();
    return format_percent(left.str(), values && values->tuple ? values->items : std::vector{right});
  }
  return fail("unsupported operand types for " + std::string(op) + ": " + type_of(left) + " and " +
              type_of(right));
}

int Runtime::order(const Value& left, const Value& right) {
  if (!charge(1)) return 0;
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) {
      return left.as_int() < right.as_int() ? -1 : left.as_int() > right.as_int();
    }
    return left.as_real() < right.as_real() ? -1 : left.as_real() > right.as_real();
  }
  // UTF-8 bytes sort like code points.
  if (left.is_string() && right.is_string()) {
    const int result = left.str().compare(right.str());
    return result < 0 ? -1 : result > 0;
  }
  const List* a = left.as_list();
  const List* b = right.as_list();
  if (a && b && a->tuple == b->tuple && !a->lazy && !b->lazy) {
    for (size_t i = 0; i < std::min(a->items.size(), b->items.size()); ++i) {
      if (equals(a->items[i], b->items[i])) continue;
      return order(a->items[i], b->items[i]);
    }
    return a->items.size() < b->items.size() ? -1 : a->items.size() > b->items.size();
  }
  fail("cannot order " + type_of(left) + " and " + type_of(right));
  return 0;
}

bool Runtime::contains(const Value& container, const Value& item) {
  if (!charge(1)) return false;
  if (container.is_string()) {
    if (!item.is_string()) {
      fail("'in' on a string needs a string, not " + type_of(item));
      return false;
    }
    charge(container.str().size() / 64);
    return find_place(container.str(), item.str(), options_.sentinel).begin != std::string::npos;
  }
  if (const List* list = container.as_list()) {
    charge(list->items.size() / 4);
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& element) { return same(element, item); });
  }
  if (const Dict* dict = container.as_dict()) {
    charge(dict->items.size() / 8);
    return dict->find(item) != nullptr;
  }
  if (container.is_undefined()) {
    return false;  // an undefined value iterates as empty
  }
  fail("'in' does not work on " + type_of(container));
  return false;
}

// Equal but for sentinels.
bool Runtime::same(const Value& left, const Value& right) const {
  const auto& sentinel = options_.sentinel;
  if (sentinel.empty() || !left.is_string() || !right.is_string()) return equals(left, right);
  const std::string& a = left.str();
  const std::string& b = right.str();
  if (a.find(sentinel) == std::string::npos && b.find(sentinel) == std::string::npos) return a == b;
  return without(a, sentinel) == without(b, sentinel);
}

bool Runtime::compare(std::string_view op, const Value& left, const Value& right) {
  if (!charge(1)) return false;
  if (op == "==") return same(left, right);
  if (op == "!=") return !same(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  const int result = order(left, right);
  if (op == "<") return result < 0;
  if (op == ">") return result > 0;
  return op == "<=" ? result <= 0 : result >= 0;
}

Value Runtime::negate(const Value& value) {
  if (value.is_integral()) return integer_arithmetic(*this, '-', 0, value.as_int());
  if (value.is<double>()) return Value(-value.as<double>());
  return fail("cannot negate " + type_of(value));
}

Value Runtime::attribute(const Value& value, std::string_view name) {
  if (!charge(1)) return {};
  if (value.is_undefined()) return fail(quoted(*value.as<Undefined>().what) + " is undefined");
  if (name.starts_with("__")) return Value::undefined(name);  // the sandbox hides these
  if (value.is<std::shared_ptr<LoopState>>()) {
    const LoopState& loop = *value.as<std::shared_ptr<LoopState>>();
    const auto size = static_cast<int64_t>(loop.items->items.size());
    const auto index = static_cast<int64_t>(loop.index);
    if (name == "index") return Value::integer(index + 1);
    if (name == "index0") return Value::integer(index);
    if (name == "revindex") return Value::integer(size - index);
    if (name == "revindex0") return Value::integer(size - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == size);
    if (name == "length") return Value::integer(size);
    if (name == "depth") return Value::integer(loop.depth + 1);
    if (name == "depth0") return Value::integer(loop.depth);
    if (name == "previtem" && index > 0) return loop.items->items[loop.index - 1];
    if (name == "nextitem" && index + 1 < size) return loop.items->items[loop.index + 1];
  }
  if (is_method(value, name)) {
    auto bound = std::make_shared<Function>();
    bound->kind = Function::Kind::kMethod;
    bound->name = name;
    bound->self = value;
    return Value(std::move(bound));
  }
  const Value* found = nullptr;
  if (const Dict* dict = value.as_dict()) {
    charge(dict->items.size() / 8);
    found = dict->find(name);
  } else if (value.is<std::shared_ptr<Namespace>>()) {
    found = value.as<std::shared_ptr<Namespace>>()->fields.find(name);
  }
  if (found) return *found;
  return Value::undefined(type_of(value) + "." + std::string(name));
}

Value Runtime::item(const Value& value, const Value& key) {
  if (!charge(1)) return {};
  if (value.is_undefined()) return fail(quoted(*value.as<Undefined>().what) + " is undefined");
  if (const Dict* dict = value.as_dict()) {
    charge(dict->items.size() / 8);
    if (const Value* found = dict->find(key)) return *found;
    return key.is_string() ? attribute(value, key.str()) : Value::undefined(to_str(key));
  }
  if (key.is_integral()) {
    int64_t index = key.as_int();
    if (const List* list = value.as_list(); list && !list->lazy) {
      const auto size = static_cast<int64_t>(list->items.size());
      if (index < 0) index += size;
      if (index >= 0 && index < size) return list->items[static_cast<size_t>(index)];
    } else if (value.is_string()) {
      const Value start = Value::integer(index);
      const Value stop = index == -1 ? Value::none() : Value::integer(index + 1);
      const Value one = slice(value, &start, &stop, nullptr);
      if (failed() || (one.is_string() && !one.str().empty())) return one;
    }
    return Value::undefined(type_of(value) + " element " + std::to_string(key.as_int()));
  }
  if (key.is_string()) return attribute(value, key.str());
  return Value::undefined(type_of(value) + " element");
}

Value Runtime::slice(const Value& value, const Value* start, const Value* stop, const Value* step) {
  if (!charge(1)) return {};
  std::vector<std::string_view> characters;
  const List* list = value.as_list();
  if (value.is_string()) {
    const std::string_view text = value.str();
    if (!charge(text.size() / 16)) return {};
    for (size_t i = 0; i < text.size();) {
      const size_t size = decode_utf8(text, i).size;
      characters.push_back(text.substr(i, size));
      i += size;
    }
  } else if (!list || list->lazy) {
    if (value.is_undefined()) return fail(quoted(*value.as<Undefined>().what) + " is undefined");
    return fail("cannot slice " + type_of(value));
  }
  const auto size = static_cast<int64_t>(list ? list->items.size() : characters.size());
  const auto given = [](const Value* v) { return v && !v->is_none(); };
  for (const Value* v : {start, stop, step}) {
    if (given(v) && !v->is_integral()) return fail("slice bounds must be integers");
  }
  const int64_t stride = given(step) ? step->as_int() : 1;
  if (stride == 0) return fail("a slice step of zero");
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const auto bound = [&](const Value* v, int64_t fallback) {
    if (!given(v)) return fallback;
    int64_t at = v->as_int();
    if (at < 0) at += size;
    return std::clamp(at, low, high);
  };
  const int64_t from = bound(start, stride > 0 ? low : high);
  const int64_t to = bound(stop, stride > 0 ? high : low);
  std::vector<Value> items;
  std::string text;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    if (list) {
      items.push_back(list->items[static_cast<size_t>(i)]);
    } else {
      text.append(characters[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return list ? checked_list(std::move(items), list->tuple) : make_string(std::move(text));
}

std::vector<Value> Runtime::iterate(const Value& value) {
  std::vector<Value> items;
  if (!charge(1)) return items;
  if (const List* list = value.as_list()) {
    charge(list->items.size() / 4);
    return list->items;
  }
  if (value.is_string()) {
    const std::string_view text = value.str();
    if (!charge(text.size() * 4)) return items;
    for (size_t i = 0; i < text.size();) {
      const size_t size = decode_utf8(text, i).size;
      items.push_back(Value::string(std::string(text.substr(i, size))));
      i += size;
    }
    return items;
  }
  if (const Dict* dict = value.as_dict()) {
    for (const auto& member : dict->items) items.push_back(member.first);
    return items;
  }
  if (!value.is_undefined()) fail(type_of(value) + " cannot be iterated over");
  return items;
}

}  // namespace tandem::text::jinja
