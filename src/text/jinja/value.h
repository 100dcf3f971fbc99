// Values of the template language: Python's, as far as chat templates use them. Cheap to copy;
// strings, lists and dicts are shared and never change once made (namespaces do).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::text::jinja {

struct Node;
class Value;

using StringPtr = std::shared_ptr<const std::string>;

struct Undefined {
  StringPtr what;  // the name or attribute that was missing, for messages
};
struct None {};
struct BigInteger {  // beyond 64 bits: kept as text, only printed
  StringPtr digits;
};
struct List {
  std::vector<Value> items;
  bool tuple = false;
  // What Python's generators and iterators give: always true, without length, indices and JSON.
  bool lazy = false;
  int depth = 1;  // of nesting, bounded so that no recursion over a value can run away
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;  // insertion order; keys are strings or numbers
  int depth = 1;
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  void set(std::string_view key, Value value);
  void set(const Value& key, Value value);
};
struct Namespace {
  Dict fields;
};
struct LoopState {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 0;
  const Node* recursive = nullptr;  // the `for` to run again when the loop is called
  std::shared_ptr<Value> changed;
};
struct Function;

class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, BigInteger, StringPtr,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>, std::shared_ptr<LoopState>,
                               std::shared_ptr<Function>>;

  Value() = default;
  template <typename T>
    requires(std::is_constructible_v<Storage, T> && !std::is_same_v<std::decay_t<T>, Value> &&
             !std::is_pointer_v<std::decay_t<T>>)
  Value(T&& value) : storage_(std::forward<T>(value)) {}  // NOLINT: values convert
  static Value string(std::string text) {
    return Value(StringPtr(std::make_shared<const std::string>(std::move(text))));
  }
  static Value undefined(std::string_view what) {
    return Value(Undefined{std::make_shared<const std::string>(what)});
  }
  static Value integer(int64_t value) { return Value(Storage(value)); }
  static Value none() { return Value(None{}); }
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value lazy(std::vector<Value> items);
  static Value dict(std::vector<std::pair<Value, Value>> items);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(storage_);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(storage_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_string() const { return is<StringPtr>(); }
  const std::string& str() const { return *as<StringPtr>(); }
  const List* as_list() const {
    const auto* p = std::get_if<std::shared_ptr<const List>>(&storage_);
    return p ? p->get() : nullptr;
  }
  const Dict* as_dict() const {
    const auto* p = std::get_if<std::shared_ptr<const Dict>>(&storage_);
    return p ? p->get() : nullptr;
  }
  bool is_number() const { return is<int64_t>() || is<double>() || is<bool>(); }
  bool is_integral() const { return is<int64_t>() || is<bool>(); }
  int64_t as_int() const { return is<bool>() ? static_cast<int64_t>(as<bool>()) : as<int64_t>(); }
  double as_real() const { return is<double>() ? as<double>() : static_cast<double>(as_int()); }

  // A string that `safe` or `escape` made: what `+` joins to it is escaped for HTML, as markupsafe
  // does.
  bool is_markup() const { return markup_; }
  Value as_markup() const {
    Value copy = *this;
    copy.markup_ = is_string();
    return copy;
  }

  bool truthy() const;
  // "str", "int", "list", ... for messages.
  std::string_view type_name() const;
  int depth() const;

 private:
  Storage storage_;
  bool markup_ = false;
};

// Python's ==. Bounded by the values' depth.
bool equals(const Value& a, const Value& b);

inline constexpr int kMaxValueDepth = 100;

struct Function {
  enum class Kind { kGlobal, kMethod, kMacro, kCaller };
  Kind kind = Kind::kGlobal;
  std::string name;
  Value self;                  // kMethod: what it is bound to
  const Node* node = nullptr;  // kMacro, kCaller: the definition
  // Variables visible at the definition when it was not at the top level.
  std::vector<std::pair<std::string, Value>> captured;
};

}  // namespace tandem::text::jinja
