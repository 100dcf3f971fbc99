// Methods of strings, lists and dicts.
#include <algorithm>
#include <array>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

constexpr std::array<std::string_view, 33> kStringMethods = {
    "strip",    "lstrip",  "rstrip",  "split",        "rsplit",       "splitlines", "startswith",
    "endswith", "replace", "upper",   "lower",        "title",        "capitalize", "find",
    "rfind",    "index",   "count",   "join",         "isdigit",      "isalpha",    "isalnum",
    "isspace",  "isupper", "islower", "removeprefix", "removesuffix", "partition",  "rpartition",
    "zfill",    "ljust",   "rjust",   "isnumeric",    "format"};
constexpr std::array<std::string_view, 5> kDictMethods = {"items", "keys", "values", "get", "copy"};
constexpr std::array<std::string_view, 5> kDictMutators = {"update", "pop", "clear", "setdefault",
                                                           "popitem"};
constexpr std::array<std::string_view, 2> kListMethods = {"index", "count"};
constexpr std::array<std::string_view, 7> kListMutators = {"append", "extend",  "insert", "pop",
                                                           "remove", "reverse", "sort"};

template <size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_alpha(uint32_t c) { return (char_class(c) & kLetter) != 0; }
bool is_alnum(uint32_t c) { return (char_class(c) & (kLetter | kNumber)) != 0; }
bool is_number(uint32_t c) { return (char_class(c) & kNumber) != 0; }

class StringMethods {
 public:
  StringMethods(Runtime& runtime, const Value& self, const Arguments& arguments)
      : runtime_(runtime), text_(self.str()), arguments_(arguments) {}

  Value call(std::string_view name) {
    if (!runtime_.charge(1 + text_.size() / 32)) return {};
    if (name == "strip") return stripped(Side::kBoth);
    if (name == "lstrip") return stripped(Side::kLeft);
    if (name == "rstrip") return stripped(Side::kRight);
    if (name == "upper") return runtime_.make_string(upper(text_));
    if (name == "lower") return runtime_.make_string(lower(text_));
    if (name == "title") return runtime_.make_string(title(text_));
    if (name == "capitalize") return runtime_.make_string(capitalize(text_));
    if (name == "split" || name == "rsplit") return split_text(name == "rsplit");
    if (name == "splitlines") return lines();
    if (name == "startswith" || name == "endswith") return affix(name == "startswith");
    if (name == "replace") return replaced();
    if (name == "find" || name == "rfind" || name == "index" || name == "count") return found(name);
    if (name == "join") return joined();
    if (name == "removeprefix" || name == "removesuffix") return removed(name == "removeprefix");
    if (name == "partition" || name == "rpartition") return partitioned(name == "rpartition");
    if (name == "format") return runtime_.format_braces(text_, arguments_);
    if (name == "zfill" || name == "ljust" || name == "rjust") return padded(name);
    return predicate(name);
  }

 private:
  // A required string argument; empty (and an error) when it is something else.
  std::string_view text_argument(size_t index, std::string_view name) {
    const Value* value = arguments_.find(index, name);
    if (value && value->is_string()) return value->str();
    runtime_.fail("expected a string argument");
    return {};
  }
  std::optional<std::string_view> optional_text(size_t index, std::string_view name) {
    const Value* value = arguments_.find(index, name);
    if (!value || value->is_none()) return std::nullopt;
    return text_argument(index, name);
  }
  int64_t integer_argument(size_t index, std::string_view name, int64_t fallback) {
    const Value* value = arguments_.find(index, name);
    if (!value) return fallback;
    if (value->is_integral()) return value->as_int();
    runtime_.fail("expected an integer argument");
    return fallback;
  }
  std::string_view sentinel() const { return runtime_.options().sentinel; }
  Value text(std::string_view value) { return runtime_.make_string(std::string(value)); }
  Value texts(const std::vector<std::string_view>& parts, bool tuple = false) {
    std::vector<Value> values;
    values.reserve(parts.size());
    for (const std::string_view part : parts) values.push_back(text(part));
    return runtime_.checked_list(std::move(values), tuple);
  }

  Value stripped(Side side) { return text(strip(text_, optional_text(0, "chars"), side)); }

  Value split_text(bool from_right) {
    const auto separator = optional_text(0, "sep");
    if (separator && separator->empty())
      return runtime_.fail("split needs a separator that is not empty");
    return texts(
        split(text_, separator, integer_argument(1, "maxsplit", -1), from_right, sentinel()));
  }

  Value lines() {
    const Value* keep = arguments_.find(0, "keepends");
    return texts(split_lines(text_, keep && keep->truthy()));
  }

  Value affix(bool start) {
    const Value* what = arguments_.find(0, "prefix");
    if (!what) return runtime_.fail("expected an argument");
    const auto matches = [&](const Value& v) {
      if (!v.is_string()) {
        runtime_.fail("expected a string argument");
        return false;
      }
      const std::string plain = without(text_, sentinel());
      const std::string what_plain = without(v.str(), sentinel());
      return start ? plain.starts_with(what_plain) : plain.ends_with(what_plain);
    };
    if (const List* list = what->as_list()) {
      return Value(std::any_of(list->items.begin(), list->items.end(), matches));
    }
    return Value(matches(*what));
  }

  Value replaced() {
    const std::string_view from = text_argument(0, "old");
    const std::string_view to = text_argument(1, "new");
    if (runtime_.failed()) return {};
    // The result's size is bounded before it is made.
    const size_t places = from.empty() ? text_.size() + 1 : text_.size() / from.size() + 1;
    if (to.size() > runtime_.options().limits.string_bytes / places) {
      size_t real = 0;
      for (size_t i = text_.find(from); i != std::string_view::npos && !from.empty();
           i = text_.find(from, i + from.size())) {
        ++real;
      }
      if (from.empty() || (real && to.size() > runtime_.options().limits.string_bytes / real)) {
        return runtime_.fail("a string is too long");
      }
    }
    return runtime_.make_string(
        replace(text_, from, to, integer_argument(2, "count", -1), sentinel()));
  }

  Value found(std::string_view name) {
    const std::string_view what = text_argument(0, "sub");
    if (runtime_.failed()) return {};
    if (name == "count") {
      if (what.empty()) return Value::integer(static_cast<int64_t>(count_code_points(text_)) + 1);
      int64_t count = 0;
      for (Place at = find_place(text_, what, sentinel()); at.begin != std::string_view::npos;
           at = find_place(text_, what, sentinel(), at.end)) {
        ++count;
      }
      return Value::integer(count);
    }
    const size_t at = find_place(text_, what, sentinel(), 0, name == "rfind").begin;
    if (at == std::string_view::npos) {
      if (name == "index") return runtime_.fail("substring not found");
      return Value::integer(-1);
    }
    return Value::integer(
        static_cast<int64_t>(runtime_.length_of(std::string_view(text_).substr(0, at))));
  }

  Value joined() {
    std::string out;
    bool first = true;
    if (arguments_.positional.empty()) return runtime_.fail("join needs an argument");
    for (const Value& value : runtime_.iterate(arguments_.positional[0])) {
      if (!value.is_string()) return runtime_.fail("join needs strings");
      if (!first) out += text_;
      if (!first && text_.empty() && grow_together(out, value.str())) out += sentinel();
      out += value.str();
      first = false;
      if (out.size() > runtime_.options().limits.string_bytes) break;
    }
    return runtime_.make_string(std::move(out));
  }

  Value removed(bool prefix) {
    const std::string_view what = text_argument(0, "prefix");
    std::string_view rest = text_;
    const Place at = find_place(text_, what, sentinel(), 0, !prefix);
    if (prefix && at.begin == 0) rest.remove_prefix(at.end);
    if (!prefix && at.begin != std::string_view::npos && at.end == rest.size()) {
      rest.remove_suffix(rest.size() - at.begin);
    }
    return text(rest);
  }

  Value partitioned(bool from_right) {
    const std::string_view what = text_argument(0, "sep");
    if (what.empty()) return runtime_.fail("partition needs a separator that is not empty");
    const std::string_view all = text_;
    const Place at = find_place(all, what, sentinel(), 0, from_right);
    if (at.begin == std::string_view::npos) {
      return from_right ? texts({"", "", all}, true) : texts({all, "", ""}, true);
    }
    return texts(
        {all.substr(0, at.begin), all.substr(at.begin, at.end - at.begin), all.substr(at.end)},
        true);
  }

  Value padded(std::string_view name) {
    const int64_t width = integer_argument(0, "width", 0);
    const auto length = static_cast<int64_t>(count_code_points(text_));
    if (width <= length) return text(text_);
    if (width > (1 << 20)) return runtime_.fail("a string is too long");
    std::string_view fill = " ";
    if (name != "zfill") fill = optional_text(1, "fillchar").value_or(" ");
    if (name == "zfill") fill = "0";
    std::string padding;
    for (int64_t i = length; i < width; ++i) padding += fill;
    std::string_view rest = text_;
    std::string out;
    if (name == "zfill" && !rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
      out += rest[0];
      rest.remove_prefix(1);
    }
    out += name == "ljust" ? std::string(rest) + padding : padding + std::string(rest);
    return runtime_.make_string(std::move(out));
  }

  Value predicate(std::string_view name) {
    if (name == "isdigit") return Value(all_characters(text_, is_decimal));
    if (name == "isnumeric") return Value(all_characters(text_, is_number));
    if (name == "isalpha") return Value(all_characters(text_, is_alpha));
    if (name == "isalnum") return Value(all_characters(text_, is_alnum));
    if (name == "isspace") return Value(all_characters(text_, is_python_space));
    if (name == "isupper")
      return Value(runtime_.test("upper", Value::string(std::string(text_)), {}));
    return Value(runtime_.test("lower", Value::string(std::string(text_)), {}));
  }

  Runtime& runtime_;
  const std::string& text_;
  const Arguments& arguments_;
};

Value dict_method(Runtime& runtime, const Dict& dict, const Value& self, std::string_view name,
                  const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    const Value* fallback = arguments.find(1, "default");
    if (!key) return runtime.fail("get needs a key");
    runtime.charge(1 + dict.items.size() / 8);
    const Value* found = dict.find(*key);
    return found ? *found : fallback ? *fallback : Value::none();
  }
  if (name == "copy") return self;
  std::vector<Value> values;
  values.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (name == "keys") {
      values.push_back(key);
    } else if (name == "values") {
      values.push_back(value);
    } else {
      values.push_back(runtime.checked_list({key, value}, true));
    }
  }
  return runtime.checked_list(std::move(values));
}

Value list_method(Runtime& runtime, const List& list, std::string_view name,
                  const Arguments& arguments) {
  const Value* what = arguments.find(0, "value");
  if (!what) return runtime.fail("expected an argument");
  if (!runtime.charge(1 + list.items.size())) return {};
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (!equals(list.items[i], *what)) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    ++count;
  }
  return name == "count" ? Value::integer(count) : runtime.fail("the list has no such value");
}

}  // namespace

bool is_method(const Value& self, std::string_view name) {
  if (self.is_string()) return among(kStringMethods, name);
  if (self.as_dict()) return among(kDictMethods, name) || among(kDictMutators, name);
  if (self.as_list()) return among(kListMethods, name) || among(kListMutators, name);
  if (self.is<std::shared_ptr<LoopState>>()) return name == "cycle" || name == "changed";
  return false;
}

Value Runtime::method(const Value& self, std::string_view name, const Arguments& arguments) {
  if (!charge(1)) return {};
  if (self.is_string()) return StringMethods(*this, self, arguments).call(name);
  const Dict* dict = self.as_dict();
  const List* list = self.as_list();
  if ((dict && among(kDictMutators, name)) || (list && among(kListMutators, name))) {
    return fail("." + std::string(name) + "() changes a value, which templates may not do");
  }
  if (dict) return dict_method(*this, *dict, self, name, arguments);
  if (list) return list_method(*this, *list, name, arguments);
  if (self.is<std::shared_ptr<LoopState>>()) {
    LoopState& loop = *self.as<std::shared_ptr<LoopState>>();
    if (name == "cycle") {
      if (arguments.positional.empty()) return fail("loop.cycle needs arguments");
      return arguments.positional[loop.index % arguments.positional.size()];
    }
    Value now = checked_list(arguments.positional, true);
    const bool changed = !loop.changed || !equals(*loop.changed, now);
    loop.changed = std::make_shared<Value>(std::move(now));
    return Value(changed);
  }
  return fail("unknown method " + std::string(name));
}

}  // namespace tandem::text::jinja
