#include "text/jinja/value.h"

#include <algorithm>

namespace tandem::text::jinja {

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.is_string() && name.str() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.str()));
  for (const auto& [name, value] : items) {
    if (equals(name, key)) return &value;
  }
  return nullptr;
}

void Dict::set(std::string_view key, Value value) {
  set(Value::string(std::string(key)), std::move(value));
}

void Dict::set(const Value& key, Value value) {
  depth = std::max(depth, value.depth() + 1);
  for (auto& [name, old] : items) {
    if (equals(name, key)) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

Value Value::list(std::vector<Value> items, bool tuple) {
  auto made = std::make_shared<List>();
  for (const Value& item : items) made->depth = std::max(made->depth, item.depth() + 1);
  made->items = std::move(items);
  made->tuple = tuple;
  return Value(std::shared_ptr<const List>(std::move(made)));
}

Value Value::lazy(std::vector<Value> items) {
  auto made = std::make_shared<List>();
  for (const Value& item : items) made->depth = std::max(made->depth, item.depth() + 1);
  made->items = std::move(items);
  made->lazy = true;
  return Value(std::shared_ptr<const List>(std::move(made)));
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  auto made = std::make_shared<Dict>();
  for (const auto& item : items) made->depth = std::max(made->depth, item.second.depth() + 1);
  made->items = std::move(items);
  return Value(std::shared_ptr<const Dict>(std::move(made)));
}

bool Value::truthy() const {
  if (is<bool>()) return as<bool>();
  if (is<int64_t>()) return as<int64_t>() != 0;
  if (is<double>()) return as<double>() != 0.0;
  if (is_string()) return !str().empty();
  if (const List* list = as_list()) return list->lazy || !list->items.empty();
  if (const Dict* dict = as_dict()) return !dict->items.empty();
  return !is_undefined() && !is_none();
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is<bool>()) return "bool";
  if (is<int64_t>() || is<BigInteger>()) return "int";
  if (is<double>()) return "float";
  if (is_string()) return "str";
  if (const List* list = as_list())
    return list->lazy ? "generator" : list->tuple ? "tuple" : "list";
  if (as_dict() != nullptr) return "dict";
  if (is<std::shared_ptr<Namespace>>()) return "namespace";
  if (is<std::shared_ptr<LoopState>>()) return "loop";
  return "function";
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  return 0;
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.is<BigInteger>() && b.is<BigInteger>()) {
    return *a.as<BigInteger>().digits == *b.as<BigInteger>().digits;
  }
  if (a.is_string() && b.is_string()) return a.str() == b.str();
  if (a.is_none() || a.is_undefined()) {
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  }
  if (const List *x = a.as_list(), *y = b.as_list(); x && y) {
    if (x->lazy || y->lazy) return x == y;
    return x->tuple == y->tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), equals);
  }
  if (const Dict *x = a.as_dict(), *y = b.as_dict(); x && y) {
    if (x->items.size() != y->items.size()) return false;
    return std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
      const Value* other = y->find(item.first);
      return other != nullptr && equals(item.second, *other);
    });
  }
  if (a.is<std::shared_ptr<Namespace>>() && b.is<std::shared_ptr<Namespace>>()) {
    return a.as<std::shared_ptr<Namespace>>() == b.as<std::shared_ptr<Namespace>>();
  }
  return false;
}

}  // namespace tandem::text::jinja
